#include "kernels.hpp"

#if defined(__aarch64__)

#include <arm_neon.h>

#include <algorithm>
#include <cstring>

#include "jpeg_kernels.hpp"

namespace batchplant {
namespace {

// --- horizontal ---------------------------------------------------------------------------------------------

// Indices of the four channels of tap k among the 16 bytes from the first tap on, each zero-extended to 32 bits. With
// three channels the fourth lane is unused.
template <size_t channels>
uint8x16_t tap_lanes(size_t k) {
    uint8_t at[16];
    for (size_t i = 0; i < 16; ++i) at[i] = i % 4 == 0 ? static_cast<uint8_t>(k * channels + i / 4) : 255;
    return vld1q_u8(at);
}

// The weighted sum of one pixel's taps, `taps` of them in each group of four.
template <size_t channels, size_t taps>
struct Summing {
    uint8x16_t lanes[4] = {tap_lanes<channels>(0), tap_lanes<channels>(1), tap_lanes<channels>(2),
                           tap_lanes<channels>(3)};

    int32x4_t operator()(const uint8_t* pixel, const int32_t* weight, size_t groups, int32x4_t sum) const {
        for (size_t group = 0; group < groups; ++group) {
            const uint8x16_t window = vld1q_u8(pixel);
            const int32x4_t w = vld1q_s32(weight);
            sum = vmlaq_laneq_s32(sum, vreinterpretq_s32_u8(vqtbl1q_u8(window, lanes[0])), w, 0);
            if constexpr (taps > 1)
                sum = vmlaq_laneq_s32(sum, vreinterpretq_s32_u8(vqtbl1q_u8(window, lanes[1])), w, 1);
            if constexpr (taps > 2)
                sum = vmlaq_laneq_s32(sum, vreinterpretq_s32_u8(vqtbl1q_u8(window, lanes[2])), w, 2);
            if constexpr (taps > 3)
                sum = vmlaq_laneq_s32(sum, vreinterpretq_s32_u8(vqtbl1q_u8(window, lanes[3])), w, 3);
            pixel += 4 * channels;
            weight += 4;
        }
        return sum;
    }
};

// Bytes from two registers of sums: the upper halves of the lanes first, then the rest of the shift.
uint8x8_t sums_to_bytes(int32x4_t low, int32x4_t high) {
    const int16x8_t halves = vuzp2q_s16(vreinterpretq_s16_s32(low), vreinterpretq_s16_s32(high));
    return vqshrun_n_s16(halves, weight_bits - 16);
}

template <size_t channels, size_t taps_in_group>
void sum_to_bytes(const uint8_t* row, const Taps& taps, uint8_t* dst) {
    const Summing<channels, taps_in_group> summing;
    const size_t width = taps.width, stride = taps.stride;
    const size_t groups = taps_in_group < 4 ? 1 : stride / 4;
    const int32_t* first = taps.first.data();
    const int32_t* weight = taps.weight.data();
    const int32x4_t half = vdupq_n_s32(1 << (weight_bits - 1));
    // The first three of every four bytes, or all.
    uint8_t channel_bytes[16];
    for (size_t i = 0; i < 16; ++i) channel_bytes[i] = static_cast<uint8_t>(i / channels * 4 + i % channels);
    const uint8x16_t indices = vld1q_u8(channel_bytes);
    const auto sum = [&](size_t x) {
        return summing(row + static_cast<size_t>(first[x]) * channels, weight + x * stride, groups, half);
    };
    size_t x = 0;
    for (; x + 4 <= width; x += 4, dst += 4 * channels) {
        const uint8x8_t left = sums_to_bytes(sum(x), sum(x + 1));
        const uint8x8_t right = sums_to_bytes(sum(x + 2), sum(x + 3));
        vst1q_u8(dst, vqtbl1q_u8(vcombine_u8(left, right), indices));
    }
    for (; x < width; ++x, dst += channels) vst1_u8(dst, sums_to_bytes(sum(x), half));
}

template <size_t channels>
void to_bytes_of(const uint8_t* row, const Taps& taps, uint8_t* dst) {
    switch (taps.count) {
        case 1: return sum_to_bytes<channels, 1>(row, taps, dst);
        case 2: return sum_to_bytes<channels, 2>(row, taps, dst);
        case 3: return sum_to_bytes<channels, 3>(row, taps, dst);
        default: return sum_to_bytes<channels, 4>(row, taps, dst);
    }
}

void to_bytes(const uint8_t* row, const Taps& taps, uint8_t* dst) {
    if (taps.channels == 3) return to_bytes_of<3>(row, taps, dst);
    if (taps.channels == 4) return to_bytes_of<4>(row, taps, dst);
    portable_kernels.to_bytes(row, taps, dst);
}

// Sixteen values at a time, or eight, whatever the number of channels. Their first taps are looked up in 32 bytes of
// the row, their second ones in the same way one pixel further on, and so on.
constexpr size_t fine_window = 32;

// Two neighbours need a single product: that of their difference and the second one's share. The instruction
// for it doubles, so the difference with 7 bits and the share with 4 below it leave 16 bits to be cut off. The
// shares then stand where the first weights would.
constexpr int share_shift = 15 - linear_bits;

bool blends(const FineTaps& taps) { return taps.linear && taps.lanes == 16; }

bool pack_lanes(FineTaps& taps, size_t lanes) {
    const size_t channels = taps.channels, count = taps.width * channels, groups = (count + lanes - 1) / lanes;
    taps.lanes = lanes;
    taps.starts.resize(groups);
    taps.shuffles.assign(groups * lanes, 0);
    taps.weights.assign(groups * lanes * taps.count, 0);
    size_t x = 0, c = 0;
    for (size_t group = 0; group < groups; ++group) {
        const size_t begin = group * lanes, end = std::min(begin + lanes, count);
        // Pixels go left to right, or right to left where the image is flipped.
        const auto [start, stop] = std::minmax(taps.first[x], taps.first[(end - 1) / channels]);
        if (static_cast<size_t>(stop + 1 - start) * channels > fine_window) return false;
        taps.starts[group] = start * static_cast<int32_t>(channels);
        int16_t* weights = taps.weights.data() + begin * taps.count;
        for (size_t i = begin; i < end; ++i) {
            taps.shuffles[i] = static_cast<uint8_t>(static_cast<size_t>(taps.first[x] - start) * channels + c);
            for (size_t k = 0; k < taps.count; ++k) weights[k * lanes + i - begin] = taps.weight[x * taps.count + k];
            if (blends(taps)) weights[i - begin] = static_cast<int16_t>(weights[lanes + i - begin] << share_shift);
            if (++c == channels) c = 0, ++x;
        }
    }
    return true;
}

void pack(FineTaps& taps) {
    if (!pack_lanes(taps, 16) && !pack_lanes(taps, 8)) taps.lanes = 0;
}

// Sums of products in 32 bits, and their result as fine values.
template <int shift, int32_t half>
struct FineSum {
    int32x4_t low = vdupq_n_s32(half), high = vdupq_n_s32(half);

    void add(uint8x16_t bytes, const int16_t* weight) {
        const int16x8_t values = vreinterpretq_s16_u8(bytes);
        const int16x8_t w = vld1q_s16(weight);
        low = vmlal_s16(low, vget_low_s16(values), vget_low_s16(w));
        high = vmlal_high_s16(high, values, w);
    }
    int16x8_t result() const { return vshrn_high_n_s32(vshrn_n_s32(low, shift), high, shift); }
};

template <int shift, int32_t half, size_t fixed_taps>
void sum_to_fine(const uint8_t* row, const FineTaps& taps, int16_t* dst) {
    const size_t groups = taps.starts.size(), channels = taps.channels;
    const size_t count = fixed_taps ? fixed_taps : taps.count;
    const int32_t* start = taps.starts.data();
    const uint8_t* shuffle = taps.shuffles.data();
    const int16_t* weight = taps.weights.data();
    const uint8x16_t zero = vdupq_n_u8(0);
    if (taps.lanes == 8) {
        for (size_t group = 0; group < groups; ++group, shuffle += 8, dst += 8) {
            const uint8_t* from = row + start[group];
            const uint8x16_t indices = vcombine_u8(vld1_u8(shuffle), vdup_n_u8(255));
            FineSum<shift, half> sum;
            for (size_t k = 0; k < count; ++k, from += channels, weight += 8) {
                sum.add(vzip1q_u8(vqtbl2q_u8(vld1q_u8_x2(from), indices), zero), weight);
            }
            vst1q_s16(dst, sum.result());
        }
        return;
    }
    for (size_t group = 0; group < groups; ++group, shuffle += 16, dst += 16) {
        const uint8_t* from = row + start[group];
        const uint8x16_t indices = vld1q_u8(shuffle);
        FineSum<shift, half> left, right;
        for (size_t k = 0; k < count; ++k, from += channels, weight += 16) {
            const uint8x16_t values = vqtbl2q_u8(vld1q_u8_x2(from), indices);
            left.add(vzip1q_u8(values, zero), weight);
            right.add(vzip2q_u8(values, zero), weight + 8);
        }
        vst1q_s16(dst, left.result());
        vst1q_s16(dst + 8, right.result());
    }
}

int16x8_t blend(uint8x8_t left, uint8x8_t right, int16x8_t share) {
    const int16x8_t difference = vreinterpretq_s16_u16(vsubl_u8(right, left));
    const int16x8_t part = vqdmulhq_s16(vshlq_n_s16(difference, fine_bits), share);
    return vaddq_s16(vreinterpretq_s16_u16(vshll_n_u8(left, fine_bits)), part);
}

void blend_to_fine(const uint8_t* row, const FineTaps& taps, int16_t* dst) {
    const size_t groups = taps.starts.size(), channels = taps.channels;
    const int32_t* start = taps.starts.data();
    const uint8_t* shuffle = taps.shuffles.data();
    const int16_t* share = taps.weights.data();
    for (size_t group = 0; group < groups; ++group, shuffle += 16, share += 32, dst += 16) {
        const uint8_t* from = row + start[group];
        const uint8x16_t indices = vld1q_u8(shuffle);
        const uint8x16_t left = vqtbl2q_u8(vld1q_u8_x2(from), indices);
        const uint8x16_t right = vqtbl2q_u8(vld1q_u8_x2(from + channels), indices);
        vst1q_s16(dst, blend(vget_low_u8(left), vget_low_u8(right), vld1q_s16(share)));
        vst1q_s16(dst + 8, blend(vget_high_u8(left), vget_high_u8(right), vld1q_s16(share + 8)));
    }
}

void to_fine(const uint8_t* row, const FineTaps& taps, int16_t* dst) {
    if (blends(taps)) return blend_to_fine(row, taps, dst);
    if (taps.lanes == 0) return portable_kernels.to_fine(row, taps, dst);
    if (taps.linear) return sum_to_fine<linear_bits - fine_bits, 0, 2>(row, taps, dst);
    constexpr int shift = fine_weight_bits - fine_bits;
    constexpr int32_t half = 1 << (shift - 1);
    switch (taps.count) {
        case 2: return sum_to_fine<shift, half, 2>(row, taps, dst);
        case 3: return sum_to_fine<shift, half, 3>(row, taps, dst);
        default: return sum_to_fine<shift, half, 0>(row, taps, dst);
    }
}

// --- vertical -----------------------------------------------------------------------------------------------

// Calls step(i) for every 16 values; the last call overlaps the previous one instead of passing the end. Returns false
// if there are fewer than 16.
template <typename Step>
bool for_each_vector(size_t count, Step step) {
    if (count < 16) return false;
    size_t i = 0;
    for (; i + 16 <= count; i += 16) step(i);
    if (i < count) step(count - 16);
    return true;
}

void blend_bytes(const uint8_t* const* rows, const int32_t* weights, size_t taps, uint8_t* dst, size_t count) {
    const int32x4_t half = vdupq_n_s32(1 << (weight_bits - 1));
    // Widening by interleaving with zeros runs on both vector pipes of most cores, the instruction for it on one.
    const uint8x16_t zero = vdupq_n_u8(0);
    const bool done = for_each_vector(count, [&](size_t i) {
        int32x4_t a = half, b = half, c = half, d = half;
        for (size_t k = 0; k < taps; ++k) {
            const uint8x16_t bytes = vld1q_u8(rows[k] + i);
            const uint16x8_t low = vreinterpretq_u16_u8(vzip1q_u8(bytes, zero));
            const uint16x8_t high = vreinterpretq_u16_u8(vzip2q_u8(bytes, zero));
            const uint16x8_t zero16 = vreinterpretq_u16_u8(zero);
            const int32_t weight = weights[k];
            a = vmlaq_n_s32(a, vreinterpretq_s32_u16(vzip1q_u16(low, zero16)), weight);
            b = vmlaq_n_s32(b, vreinterpretq_s32_u16(vzip2q_u16(low, zero16)), weight);
            c = vmlaq_n_s32(c, vreinterpretq_s32_u16(vzip1q_u16(high, zero16)), weight);
            d = vmlaq_n_s32(d, vreinterpretq_s32_u16(vzip2q_u16(high, zero16)), weight);
        }
        vst1q_u8(dst + i, vcombine_u8(sums_to_bytes(a, b), sums_to_bytes(c, d)));
    });
    if (!done) portable_kernels.blend_bytes(rows, weights, taps, dst, count);
}

void blend_fine(const int16_t* const* rows, const int16_t* weights, size_t taps, uint8_t* dst, size_t count) {
    const bool done = for_each_vector(count, [&](size_t i) {
        int32x4_t a = vdupq_n_s32(0), b = a, c = a, d = a;
        for (size_t k = 0; k < taps; ++k) {
            const int16x8_t low = vld1q_s16(rows[k] + i);
            const int16x8_t high = vld1q_s16(rows[k] + i + 8);
            const int16_t weight = weights[k];
            a = vmlal_n_s16(a, vget_low_s16(low), weight);
            b = vmlal_high_n_s16(b, low, weight);
            c = vmlal_n_s16(c, vget_low_s16(high), weight);
            d = vmlal_high_n_s16(d, high, weight);
        }
        // Cutting first and rounding then is the same as rounding once.
        const int16x8_t low = vshrn_high_n_s32(vshrn_n_s32(a, fine_weight_bits), b, fine_weight_bits);
        const int16x8_t high = vshrn_high_n_s32(vshrn_n_s32(c, fine_weight_bits), d, fine_weight_bits);
        vst1q_u8(dst + i, vqrshrun_high_n_s16(vqrshrun_n_s16(low, fine_bits), high, fine_bits));
    });
    if (!done) portable_kernels.blend_fine(rows, weights, taps, dst, count);
}

void blend_linear(const int16_t* upper, const int16_t* lower, int share, uint8_t* dst, size_t count) {
    const auto below = static_cast<int16_t>(share);
    const auto above = static_cast<int16_t>((1 << linear_bits) - share);
    // The instruction doubles each product and keeps its upper half; halving again is exact.
    const auto blend = [&](size_t i) {
        const int16x8_t first = vshrq_n_s16(vqdmulhq_n_s16(vld1q_s16(upper + i), above), 1);
        return vsraq_n_s16(first, vqdmulhq_n_s16(vld1q_s16(lower + i), below), 1);
    };
    const bool done = for_each_vector(
        count, [&](size_t i) { vst1q_u8(dst + i, vqrshrun_high_n_s16(vqrshrun_n_s16(blend(i), 2), blend(i + 8), 2)); });
    if (!done) portable_kernels.blend_linear(upper, lower, share, dst, count);
}

// --- rearranging and converting -----------------------------------------------------------------------------

// Sixteen pixels of three bytes at a time, since stores that straddle sixteen bytes take thrice as long.
void reverse_threes(const uint8_t*& src_end, uint8_t*& dst, size_t& width) {
    uint8_t reversed[48];
    for (size_t i = 0; i < 48; ++i) reversed[i] = static_cast<uint8_t>(45 - i / 3 * 3 + i % 3);
    const uint8x16_t last = vsubq_u8(vld1q_u8(reversed), vdupq_n_u8(16));  // within the last two registers
    const uint8x16_t middle = vld1q_u8(reversed + 16);
    const uint8x16_t first = vld1q_u8(reversed + 32);
    for (; width >= 16; width -= 16, src_end -= 48, dst += 48) {
        const uint8x16x3_t in = vld1q_u8_x3(src_end - 48);
        const uint8x16x2_t low = {{in.val[0], in.val[1]}}, high = {{in.val[1], in.val[2]}};
        vst1q_u8(dst, vqtbl2q_u8(high, last));
        vst1q_u8(dst + 16, vqtbl3q_u8(in, middle));
        vst1q_u8(dst + 32, vqtbl2q_u8(low, first));
    }
}

void reverse(const uint8_t* src, uint8_t* dst, size_t width, size_t channels) {
    if (channels == 3) {
        const uint8_t* end = src + width * 3;
        reverse_threes(end, dst, width);
    }
    const size_t pixels = 16 / channels;
    uint8_t reversed[16];
    for (size_t i = 0; i < 16; ++i)
        reversed[i] = static_cast<uint8_t>(16 - (i / channels + 1) * channels + i % channels);
    const uint8x16_t indices = vld1q_u8(reversed);
    // With three channels a register holds five pixels and a byte, which the next store overwrites.
    size_t left = width;
    for (; left * channels >= 16; left -= pixels, dst += pixels * channels) {
        vst1q_u8(dst, vqtbl1q_u8(vld1q_u8(src + left * channels - 16), indices));
    }
    portable_kernels.reverse(src, dst, left, channels);
}

void split(const uint8_t* src, uint8_t* dst, size_t dst_stride, size_t width, size_t channels) {
    size_t x = 0;
    switch (channels) {
        case 1: std::memcpy(dst, src, width); return;
        case 2:
            for (; x + 16 <= width; x += 16) {
                const uint8x16x2_t planes = vld2q_u8(src + x * 2);
                for (size_t c = 0; c < 2; ++c) vst1q_u8(dst + c * dst_stride + x, planes.val[c]);
            }
            break;
        case 3:
            for (; x + 16 <= width; x += 16) {
                const uint8x16x3_t planes = vld3q_u8(src + x * 3);
                for (size_t c = 0; c < 3; ++c) vst1q_u8(dst + c * dst_stride + x, planes.val[c]);
            }
            break;
        default:
            for (; x + 16 <= width; x += 16) {
                const uint8x16x4_t planes = vld4q_u8(src + x * 4);
                for (size_t c = 0; c < 4; ++c) vst1q_u8(dst + c * dst_stride + x, planes.val[c]);
            }
            break;
    }
    portable_kernels.split(src + x * channels, dst + x, dst_stride, width - x, channels);
}

void to_float(const uint8_t* src, const float* scale, const float* offset, float* dst, size_t count) {
    portable_kernels.to_float(src, scale, offset, dst, count);  // compilers do well on this one
}

void to_half(const uint8_t* src, const float* scale, const float* offset, uint16_t* dst, size_t count) {
    const auto convert = [&](uint32x4_t values, size_t i) {
        const float32x4_t product = vmulq_f32(vcvtq_f32_u32(values), vld1q_f32(scale + i));
        const float32x4_t result = vaddq_f32(product, vld1q_f32(offset + i));
        vst1_u16(dst + i, vreinterpret_u16_f16(vcvt_f16_f32(result)));
    };
    const bool done = for_each_vector(count, [&](size_t i) {
        const uint8x16_t bytes = vld1q_u8(src + i);
        const uint16x8_t low = vmovl_u8(vget_low_u8(bytes));
        const uint16x8_t high = vmovl_high_u8(bytes);
        convert(vmovl_u16(vget_low_u16(low)), i);
        convert(vmovl_high_u16(low), i + 4);
        convert(vmovl_u16(vget_low_u16(high)), i + 8);
        convert(vmovl_high_u16(high), i + 12);
    });
    if (!done) portable_kernels.to_half(src, scale, offset, dst, count);
}

const Kernels neon = {
    "neon",     &neon_jpeg_kernels, to_bytes, to_fine, pack,     blend_bytes,
    blend_fine, blend_linear,       reverse,  split,   to_float, to_half,
};

}  // namespace

const Kernels* neon_kernels() { return &neon; }

}  // namespace batchplant

#else

namespace batchplant {

const Kernels* neon_kernels() { return nullptr; }

}  // namespace batchplant

#endif
