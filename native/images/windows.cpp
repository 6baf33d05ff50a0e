#include "windows.hpp"

#include <cmath>
#include <cstring>

#include "../io/bytes.hpp"

namespace batchplant {

bool window_fits(const Windows& windows, size_t i, size_t size, size_t room) {
    const int64_t rows = windows.rows[i], width = windows.width[i], line = windows.line[i];
    if (rows < 0 || width < 0 || line < width) return false;
    int64_t span = 0, bytes = 0;
    if (rows > 0 && (__builtin_mul_overflow(rows - 1, line, &span) || __builtin_add_overflow(span, width, &span))) {
        return false;
    }
    if (__builtin_mul_overflow(rows, width, &bytes)) return false;
    return run_fits(windows.start[i], span, size) && run_fits(windows.place[i], bytes, room);
}

void copy_window(const Windows& windows, size_t i, const uint8_t* from, uint8_t* to) {
    const int64_t rows = windows.rows[i], width = windows.width[i], line = windows.line[i];
    if (rows <= 0 || width <= 0) return;
    if (line == width) {
        std::memcpy(to, from, static_cast<size_t>(rows * width));
        return;
    }
    for (int64_t row = 0; row < rows; ++row) {
        std::memcpy(to + row * width, from + row * line, static_cast<size_t>(width));
    }
}

namespace {

struct Side {
    int64_t first, count;
};

// The pixels of one side, of `length`, that are seen where low to high becomes `result` pixels.
Side side(double low, double high, double length, double support, double result) {
    double beyond = 0;
    if (support > 0) beyond = std::ceil(support * std::fmax((high - low) / result, 1.0)) + 1;
    // fmin and fmax, so that even a NaN comes to lie inside.
    const double first = std::fmax(std::fmin(std::floor(low) - beyond, length), 0.0);
    const double end = std::fmax(std::fmin(std::ceil(high) + beyond, length), first);
    return {static_cast<int64_t>(first), static_cast<int64_t>(end) - static_cast<int64_t>(first)};
}

}  // namespace

int64_t plan_windows(const Wanted& wanted, int64_t* out) {
    const size_t n = wanted.count;
    const auto row = [&](WindowRow which) { return out + static_cast<size_t>(which) * n; };
    int64_t place = 0;
    for (size_t i = 0; i < n; ++i) {
        const int32_t* shape = wanted.shape + 3 * i;
        const double* box = wanted.box + 4 * i;
        const Side down = side(box[1], box[3], shape[0], wanted.support, wanted.height);
        const Side across = side(box[0], box[2], shape[1], wanted.support, wanted.width);
        const int64_t channels = shape[2], line = shape[1] * channels;
        row(WindowRow::top)[i] = down.first;
        row(WindowRow::left)[i] = across.first;
        row(WindowRow::rows)[i] = down.count;
        row(WindowRow::columns)[i] = across.count;
        row(WindowRow::start)[i] = wanted.start[i] + down.first * line + across.first * channels;
        row(WindowRow::line)[i] = line;
        row(WindowRow::width)[i] = across.count * channels;
        row(WindowRow::place)[i] = place;
        place += (down.count * across.count * channels + 15) / 16 * 16;
    }
    return place;
}

}  // namespace batchplant
