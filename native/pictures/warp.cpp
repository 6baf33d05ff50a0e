#include "warp.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace batchplant {
namespace {

// Where the pixels of a row of the result lie in a canvas.
void find_row(const double* inverse, double row, size_t width, double* x, double* y) {
    const double middle = row + 0.5;
    const double u = inverse[1] * middle + inverse[2], v = inverse[4] * middle + inverse[5];
    const double w = inverse[7] * middle + inverse[8];
    if (inverse[6] == 0 && w == 1) {
        for (size_t i = 0; i < width; ++i) {
            const double at = static_cast<double>(i) + 0.5;
            x[i] = inverse[0] * at + u;
            y[i] = inverse[3] * at + v;
        }
        return;
    }
    for (size_t i = 0; i < width; ++i) {
        const double at = static_cast<double>(i) + 0.5, depth = inverse[6] * at + w;
        x[i] = (inverse[0] * at + u) / depth;
        y[i] = (inverse[3] * at + v) / depth;
    }
}

// A NaN is nowhere.
void keep_inside(const double* x, const double* y, size_t width, const int32_t* size, uint8_t* inside) {
    const auto high = static_cast<double>(size[0]), wide = static_cast<double>(size[1]);
    for (size_t i = 0; i < width; ++i) {
        inside[i] = static_cast<uint8_t>(inside[i] & (x[i] >= 0) & (x[i] < wide) & (y[i] >= 0) & (y[i] < high));
    }
}

constexpr int bits = 11;

// The pixel before a position, the one after it, and the share of that.
struct Pair {
    size_t first, second;
    int share;
};

Pair pair_at(double position, size_t size) {
    const double from = position - 0.5, low = std::floor(from);
    const auto first = static_cast<int64_t>(low);
    const auto last = static_cast<int64_t>(size) - 1;
    return {static_cast<size_t>(std::clamp<int64_t>(first, 0, last)),
            static_cast<size_t>(std::clamp<int64_t>(first + 1, 0, last)),
            static_cast<int>((from - low) * (1 << bits) + 0.5)};
}

template <size_t channels>
void sample_row(const WarpJob& job, const uint8_t* pixels, const int32_t* size, const WarpScratch& scratch,
                uint8_t* to) {
    constexpr int one = 1 << bits, half = 1 << (2 * bits - 1);
    const size_t stride = job.source_width * channels;
    const auto high = static_cast<size_t>(size[0]), wide = static_cast<size_t>(size[1]);
    for (size_t i = 0; i < job.width; ++i, to += channels) {
        if (scratch.inside[i] == 0) {
            std::memcpy(to, job.fill, channels);
            continue;
        }
        if (!job.bilinear) {
            const auto x = static_cast<size_t>(scratch.x[i]), y = static_cast<size_t>(scratch.y[i]);
            std::memcpy(to, pixels + y * stride + x * channels, channels);
            continue;
        }
        const Pair across = pair_at(scratch.x[i], wide), down = pair_at(scratch.y[i], high);
        const uint8_t* upper = pixels + down.first * stride;
        const uint8_t* lower = pixels + down.second * stride;
        const size_t left = across.first * channels, right = across.second * channels;
        for (size_t c = 0; c < channels; ++c) {
            const int top = upper[left + c] * (one - across.share) + upper[right + c] * across.share;
            const int bottom = lower[left + c] * (one - across.share) + lower[right + c] * across.share;
            to[c] = static_cast<uint8_t>((top * (one - down.share) + bottom * down.share + half) >> (2 * bits));
        }
    }
}

}  // namespace

void warp(const WarpJob& job, size_t index, WarpScratch& scratch) {
    using Sample = void (*)(const WarpJob&, const uint8_t*, const int32_t*, const WarpScratch&, uint8_t*);
    constexpr Sample samples[] = {sample_row<1>, sample_row<2>, sample_row<3>, sample_row<4>};
    const Sample sample = samples[job.channels - 1];
    const uint8_t* pixels = job.source + index * job.source_height * job.source_width * job.channels;
    const double* inverse = job.inverse + index * job.canvases * 9;
    const int32_t* sizes = job.sizes + index * job.canvases * 2;
    const size_t line = job.width * job.channels;
    uint8_t* to = job.out + index * job.height * line;
    scratch.x.resize(job.width);
    scratch.y.resize(job.width);
    scratch.inside.resize(job.width);
    for (size_t row = 0; row < job.height; ++row, to += line) {
        std::fill(scratch.inside.begin(), scratch.inside.end(), uint8_t{1});
        // The picture itself last: its positions are those that are looked at.
        for (size_t canvas = job.canvases; canvas-- > 0;) {
            find_row(inverse + 9 * canvas, static_cast<double>(row), job.width, scratch.x.data(), scratch.y.data());
            keep_inside(scratch.x.data(), scratch.y.data(), job.width, sizes + 2 * canvas, scratch.inside.data());
        }
        sample(job, pixels, sizes, scratch, to);
    }
}

}  // namespace batchplant
