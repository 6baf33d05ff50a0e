#include "rle.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace batchplant::rle {
namespace {

constexpr int letter_base = 48;
constexpr int more_bit = 0x20;
constexpr int sign_bit = 0x10;
// Longer numbers are no counts: 13 letters hold 65 bits.
constexpr int most_letters = 12;
constexpr double grid = 5;
// Steps along the edge of one polygon.
constexpr int64_t most_steps = int64_t{1} << 22;
constexpr double farthest = 1e7;

int64_t on_grid(double value) { return static_cast<int64_t>(grid * value + 0.5); }

// The middle of a pixel of the fine grid, on the coarse one.
double on_pixels(int64_t value) { return (static_cast<double>(value) + 0.5) / grid - 0.5; }

struct Point {
    int64_t x, y;
};

}  // namespace

bool parse(const uint8_t* text, size_t size, int64_t pixels, Counts& out) {
    out.clear();
    int64_t total = 0;
    for (size_t at = 0; at < size;) {
        uint64_t bits = 0;
        int letters = 0;
        int letter = more_bit;
        while (letter & more_bit) {
            if (at == size || letters == most_letters) return false;
            letter = text[at++] - letter_base;
            if (letter < 0 || letter >= 2 * more_bit) return false;
            bits |= static_cast<uint64_t>(letter & 0x1f) << (5 * letters++);
        }
        if (letter & sign_bit) bits |= ~uint64_t{0} << (5 * letters);
        auto count = static_cast<int64_t>(bits);
        if (out.size() > 2) count += out[out.size() - 2];
        if (count < 0 || count > pixels - total) return false;
        total += count;
        out.push_back(count);
    }
    return total == pixels;
}

std::string text_of(std::span<const int64_t> counts) {
    std::string out;
    for (size_t i = 0; i < counts.size(); ++i) {
        int64_t rest = i > 2 ? counts[i] - counts[i - 2] : counts[i];
        bool more = true;
        while (more) {
            auto letter = static_cast<int>(rest & 0x1f);
            rest >>= 5;
            more = (letter & sign_bit) ? rest != -1 : rest != 0;
            out.push_back(static_cast<char>((more ? letter | more_bit : letter) + letter_base));
        }
    }
    return out;
}

template <typename Pixel>
void paint(std::span<const int64_t> counts, size_t height, size_t width, Pixel value, Pixel* out) {
    size_t at = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
        const size_t end = at + static_cast<size_t>(counts[i]);
        if (i % 2 == 0) {
            at = end;
            continue;
        }
        while (at < end) {
            const size_t x = at / height;
            const size_t stop = std::min(end, (x + 1) * height);
            for (size_t y = at - x * height; y < stop - x * height; ++y) out[y * width + x] = value;
            at = stop;
        }
    }
}

template void paint<uint8_t>(std::span<const int64_t>, size_t, size_t, uint8_t, uint8_t*);
template void paint<uint16_t>(std::span<const int64_t>, size_t, size_t, uint16_t, uint16_t*);

void of_mask(const uint8_t* mask, size_t height, size_t width, Counts& out) {
    out.clear();
    bool in = false;
    int64_t count = 0;
    for (size_t x = 0; x < width; ++x) {
        for (size_t y = 0; y < height; ++y) {
            if ((mask[y * width + x] != 0) != in) {
                out.push_back(count);
                count = 0;
                in = !in;
            }
            ++count;
        }
    }
    out.push_back(count);
}

bool of_polygon(std::span<const double> corners, size_t height, size_t width, Counts& out) {
    const size_t n = corners.size() / 2;
    std::vector<Point> points(n);
    for (size_t i = 0; i < n; ++i) {
        const double x = corners[2 * i], y = corners[2 * i + 1];
        if (!(std::abs(x) <= farthest) || !(std::abs(y) <= farthest)) return false;
        points[i] = {on_grid(x), on_grid(y)};
    }
    // Crossings of the edge from one column of pixels to the next: there, the inside begins or ends.
    Counts turns;
    int64_t steps = 0;
    Point last{};
    bool begun = false;
    const auto visit = [&](int64_t x, int64_t y) {
        if (begun && x != last.x) {
            const double column = on_pixels(x < last.x ? x : x - 1);
            if (column == std::floor(column) && column >= 0 && column <= static_cast<double>(width) - 1) {
                const double row =
                    std::ceil(std::clamp(on_pixels(std::min(y, last.y)), 0.0, static_cast<double>(height)));
                turns.push_back(static_cast<int64_t>(column) * static_cast<int64_t>(height) +
                                static_cast<int64_t>(row));
            }
        }
        begun = true;
        last = {x, y};
    };
    for (size_t i = 0; i < n; ++i) {
        Point from = points[i], to = points[(i + 1) % n];
        const int64_t dx = std::abs(to.x - from.x), dy = std::abs(to.y - from.y);
        steps += std::max(dx, dy) + 1;
        if (steps > most_steps) return false;
        // Always from left to right, or from top to bottom, so that both ways give the same points.
        const bool wide = dx >= dy;
        const bool back = wide ? from.x > to.x : from.y > to.y;
        if (back) std::swap(from, to);
        const int64_t length = wide ? dx : dy;
        const double slope =
            length == 0 ? 0 : static_cast<double>(wide ? to.y - from.y : to.x - from.x) / static_cast<double>(length);
        for (int64_t step = 0; step <= length; ++step) {
            const int64_t along = back ? length - step : step;
            const double across = slope * static_cast<double>(along) + 0.5;
            if (wide) {
                visit(from.x + along, static_cast<int64_t>(static_cast<double>(from.y) + across));
            } else {
                visit(static_cast<int64_t>(static_cast<double>(from.x) + across), from.y + along);
            }
        }
    }
    turns.push_back(static_cast<int64_t>(height * width));
    std::sort(turns.begin(), turns.end());
    // Two turns at one place are none.
    out.clear();
    int64_t before = 0;
    for (size_t i = 0; i < turns.size(); ++i) {
        const int64_t count = turns[i] - before;
        before = turns[i];
        if (count > 0 || out.empty()) {
            out.push_back(count);
        } else if (++i < turns.size()) {
            out.back() += turns[i] - before;
            before = turns[i];
        }
    }
    return true;
}

}  // namespace batchplant::rle
