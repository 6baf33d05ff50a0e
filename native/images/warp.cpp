#include "warp.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace batchplant {
namespace {

// Positions of the pixels of a result row in a canvas.
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

// Positions as whole numbers, in parts of 1 << bits of a pixel, from the middle of the first; those that are outside
// are any.
void to_parts(const double* at, const uint8_t* inside, size_t count, int64_t* parts) {
    constexpr int one = 1 << bits;
    for (size_t i = 0; i < count; ++i) {
        // One more, so that they are positive and cutting them rounds them.
        const double from = inside[i] != 0 ? at[i] + 0.5 : 0.0;
        parts[i] = static_cast<int64_t>(from * one + 0.5) - one;
    }
}

template <size_t channels>
void take_nearest(const WarpJob& job, const uint8_t* pixels, const WarpScratch& scratch, uint8_t* to) {
    const size_t stride = job.source_width * channels;
    const uint8_t* const inside = scratch.inside.data();
    const double *const x = scratch.x.data(), *const y = scratch.y.data();
    for (size_t i = 0; i < job.width; ++i, to += channels) {
        // Places outside may be too far away for any whole number.
        const uint8_t* from = job.fill;
        if (inside[i] != 0) from = pixels + static_cast<size_t>(y[i]) * stride + static_cast<size_t>(x[i]) * channels;
        std::memcpy(to, from, channels);
    }
}

#if defined(__aarch64__)
// Blends two pixels of three bytes with the two below; reads eight bytes of each row, writes four.
inline void blend_four(const uint8_t* upper, const uint8_t* lower, uint16_t right, uint16_t down, uint8_t* to) {
    constexpr uint16_t one = 1 << bits;
    const uint16x8_t above = vmovl_u8(vld1_u8(upper)), below = vmovl_u8(vld1_u8(lower));
    const auto lefts = static_cast<uint16_t>(one - right), tops = static_cast<uint16_t>(one - down);
    const uint32x4_t first = vmlal_n_u16(vmull_n_u16(vget_low_u16(above), tops), vget_low_u16(below), down);
    const uint32x4_t rest = vmlal_n_u16(vmull_n_u16(vget_high_u16(above), tops), vget_high_u16(below), down);
    const uint32x4_t second = vextq_u32(first, rest, 3);
    const uint32x4_t sums = vmlaq_n_u32(vmulq_n_u32(first, lefts), second, right);
    const uint16x4_t made = vrshrn_n_u32(vshrq_n_u32(sums, 6), 16);
    const uint32_t bytes = vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(made, made))), 0);
    std::memcpy(to, &bytes, sizeof bytes);
}
#endif

template <size_t channels>
void sample_row(const WarpJob& job, const uint8_t* pixels, const int32_t* size, WarpScratch& scratch, uint8_t* to) {
    if (!job.bilinear) return take_nearest<channels>(job, pixels, scratch, to);
    constexpr int32_t one = 1 << bits, half = 1 << (2 * bits - 1);
    const size_t stride = job.source_width * channels;
    const int32_t last_x = size[1] - 1, last_y = size[0] - 1;
    [[maybe_unused]] const auto inner_x = static_cast<uint32_t>(std::max(last_x - 1, 0));
    [[maybe_unused]] const auto inner_y = static_cast<uint32_t>(std::max(last_y, 0));
    scratch.across.resize(job.width);
    scratch.down.resize(job.width);
    to_parts(scratch.x.data(), scratch.inside.data(), job.width, scratch.across.data());
    to_parts(scratch.y.data(), scratch.inside.data(), job.width, scratch.down.data());
    const uint8_t* const inside = scratch.inside.data();
    const int64_t *const across = scratch.across.data(), *const down = scratch.down.data();
    for (size_t i = 0; i < job.width; ++i, to += channels) {
        if (inside[i] == 0) {
            std::memcpy(to, job.fill, channels);
            continue;
        }
        const auto x = static_cast<int32_t>(across[i] >> bits), y = static_cast<int32_t>(down[i] >> bits);
        const auto right = static_cast<int32_t>(across[i] & (one - 1)),
                   lower = static_cast<int32_t>(down[i] & (one - 1));
#if defined(__aarch64__)
        if constexpr (channels == 3) {
            const bool within = static_cast<uint32_t>(x) < inner_x && static_cast<uint32_t>(y) < inner_y;
            if (within && i + 1 < job.width) {
                const uint8_t* const from = pixels + static_cast<size_t>(y) * stride + static_cast<size_t>(x) * 3;
                blend_four(from, from + stride, static_cast<uint16_t>(right), static_cast<uint16_t>(lower), to);
                continue;
            }
        }
#endif
        // At its edges an image goes on as it ends.
        const auto left = static_cast<size_t>(std::clamp(x, 0, last_x));
        const auto top = static_cast<size_t>(std::clamp(y, 0, last_y));
        const size_t next = x >= 0 && x < last_x ? channels : 0, below = y >= 0 && y < last_y ? stride : 0;
        const uint8_t* const from = pixels + top * stride + left * channels;
        const int32_t both = right * lower;
        const int32_t weights[] = {one * (one - right - lower) + both, one * right - both, one * lower - both, both};
        // All are read before the first is written, for all a compiler knows they lie in the same memory.
        int32_t sums[channels];
        for (size_t c = 0; c < channels; ++c) {
            sums[c] = half + from[c] * weights[0] + from[next + c] * weights[1] + from[below + c] * weights[2] +
                      from[below + next + c] * weights[3];
        }
        for (size_t c = 0; c < channels; ++c) to[c] = static_cast<uint8_t>(sums[c] >> (2 * bits));
    }
}

}  // namespace

void warp(const WarpJob& job, size_t index, WarpScratch& scratch) {
    using Sample = void (*)(const WarpJob&, const uint8_t*, const int32_t*, WarpScratch&, uint8_t*);
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
        // The image itself last: its positions are those that are looked at.
        for (size_t canvas = job.canvases; canvas-- > 0;) {
            find_row(inverse + 9 * canvas, static_cast<double>(row), job.width, scratch.x.data(), scratch.y.data());
            keep_inside(scratch.x.data(), scratch.y.data(), job.width, sizes + 2 * canvas, scratch.inside.data());
        }
        sample(job, pixels, sizes, scratch, to);
    }
}

}  // namespace batchplant
