#include "kernels.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "jpeg_kernels.hpp"

// The whole file but its last function runs on processors with AVX2 only, which is found out at run time.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif

namespace batchplant {
namespace {

__m128i load16(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
__m256i load32(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
void store16(void* to, __m128i value) { _mm_storeu_si128(static_cast<__m128i*>(to), value); }

// --- horizontal ---------------------------------------------------------------------------------------------

// Where the four channels of tap k are among the 16 bytes from the first tap on, each with three zeros above
// it: as 32-bit lanes. With three channels the fourth lane is nobody's.
template <size_t channels>
__m128i tap_lanes(size_t k) {
    uint8_t at[16];
    for (size_t i = 0; i < 16; ++i) at[i] = i % 4 == 0 ? static_cast<uint8_t>(k * channels + i / 4) : 255;
    return load16(at);
}

// The weighted sum of one pixel's taps, `taps` of them in each group of four.
template <size_t channels, size_t taps>
struct Summing {
    __m128i lanes[4] = {tap_lanes<channels>(0), tap_lanes<channels>(1), tap_lanes<channels>(2), tap_lanes<channels>(3)};

    __m128i part(__m128i window, const int32_t* weight, size_t k) const {
        return _mm_mullo_epi32(_mm_shuffle_epi8(window, lanes[k]), _mm_set1_epi32(weight[k]));
    }

    __m128i operator()(const uint8_t* pixel, const int32_t* weight, size_t groups, __m128i sum) const {
        for (size_t group = 0; group < groups; ++group) {
            const __m128i window = load16(pixel);
            sum = _mm_add_epi32(sum, part(window, weight, 0));
            if constexpr (taps > 1) sum = _mm_add_epi32(sum, part(window, weight, 1));
            if constexpr (taps > 2) sum = _mm_add_epi32(sum, part(window, weight, 2));
            if constexpr (taps > 3) sum = _mm_add_epi32(sum, part(window, weight, 3));
            pixel += 4 * channels;
            weight += 4;
        }
        return sum;
    }
};

template <size_t channels, size_t taps_in_group>
void sum_to_bytes(const uint8_t* row, const Taps& taps, uint8_t* dst) {
    const Summing<channels, taps_in_group> summing;
    const size_t width = taps.width, stride = taps.stride;
    const size_t groups = taps_in_group < 4 ? 1 : stride / 4;
    const __m128i half = _mm_set1_epi32(1 << (weight_bits - 1));
    // Three of every four bytes, or all.
    uint8_t kept[16];
    for (size_t i = 0; i < 16; ++i)
        kept[i] = static_cast<uint8_t>(i / channels < 4 ? i / channels * 4 + i % channels : 255);
    const __m128i keep = load16(kept);
    const int32_t* first = taps.first.data();
    const int32_t* weight = taps.weight.data();
    const auto sum = [&](size_t x) {
        const uint8_t* pixel = row + static_cast<size_t>(first[x]) * channels;
        return _mm_srai_epi32(summing(pixel, weight + x * stride, groups, half), weight_bits);
    };
    size_t x = 0;
    for (; x + 4 <= width; x += 4, dst += 4 * channels) {
        const __m128i left = _mm_packs_epi32(sum(x), sum(x + 1));
        const __m128i right = _mm_packs_epi32(sum(x + 2), sum(x + 3));
        store16(dst, _mm_shuffle_epi8(_mm_packus_epi16(left, right), keep));
    }
    for (; x < width; ++x, dst += channels) {
        const __m128i one = _mm_packs_epi32(sum(x), _mm_setzero_si128());
        const int32_t bytes = _mm_cvtsi128_si32(_mm_packus_epi16(one, one));
        std::memcpy(dst, &bytes, sizeof bytes);
    }
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

// Four values at a time, each four from 16 bytes of the row of their own; each value is a pair of taps in 32
// bits, for the instruction that multiplies pairs and adds. The next pair of taps is picked in the same way two
// pixels further on. Four fours make a step: the first and the third in one register, the second and the fourth
// in another, which is the order that packing them restores.
constexpr size_t fine_lanes = 16;
constexpr size_t place_of[4] = {0, 2, 1, 3};

bool pack_quad(FineTaps& taps, size_t quad, size_t pairs) {
    const size_t channels = taps.channels, count = taps.width * channels;
    const size_t begin = quad * 4, end = begin + 4 < count ? begin + 4 : count;
    const size_t step = quad / 4, place = place_of[quad % 4];
    const int32_t* first = taps.first.data();
    // Pixels go left to right, or right to left where the picture is flipped.
    const int32_t one = first[begin / channels], other = first[(end - 1) / channels];
    const int32_t start = one < other ? one : other;
    const int32_t stop = (one < other ? other : one) + 2;
    if (static_cast<size_t>(stop - start) * channels > 16) return false;
    taps.starts[step * 4 + place] = start * static_cast<int32_t>(channels);
    for (size_t i = begin; i < end; ++i) {
        const size_t x = i / channels, lane = place * 4 + i - begin;
        const auto at = static_cast<size_t>(first[x] - start) * channels + i % channels;
        uint8_t* shuffle = taps.shuffles.data() + (step * fine_lanes + lane) * 4;
        shuffle[0] = static_cast<uint8_t>(at);
        shuffle[2] = static_cast<uint8_t>(at + channels);
        for (size_t k = 0; k < taps.count; ++k) {
            taps.weights[((step * pairs + k / 2) * fine_lanes + lane) * 2 + k % 2] = taps.weight[x * taps.count + k];
        }
    }
    return true;
}

void pack(FineTaps& taps) {
    const size_t count = taps.width * taps.channels, pairs = (taps.count + 1) / 2;
    const size_t steps = (count + fine_lanes - 1) / fine_lanes;
    taps.lanes = fine_lanes;
    taps.starts.assign(steps * 4, 0);
    taps.shuffles.assign(steps * fine_lanes * 4, 255);
    taps.weights.assign(steps * pairs * fine_lanes * 2, 0);
    for (size_t quad = 0; quad * 4 < count; ++quad) {
        if (!pack_quad(taps, quad, pairs)) {
            taps.lanes = 0;
            return;
        }
    }
}

template <int shift, int32_t half, size_t fixed_pairs>
void sum_to_fine(const uint8_t* row, const FineTaps& taps, int16_t* dst) {
    const size_t steps = taps.starts.size() / 4, two_pixels = taps.channels * 2;
    const size_t pairs = fixed_pairs ? fixed_pairs : (taps.count + 1) / 2;
    const int32_t* start = taps.starts.data();
    const uint8_t* shuffle = taps.shuffles.data();
    const int16_t* weight = taps.weights.data();
    const auto part = [&](const uint8_t* low, const uint8_t* high, __m256i at, const int16_t* w) {
        const __m256i window = _mm256_inserti128_si256(_mm256_castsi128_si256(load16(low)), load16(high), 1);
        return _mm256_madd_epi16(_mm256_shuffle_epi8(window, at), load32(w));
    };
    for (size_t step = 0; step < steps; ++step, start += 4, shuffle += 64, dst += fine_lanes) {
        const __m256i at_even = load32(shuffle), at_odd = load32(shuffle + 32);
        __m256i even = _mm256_set1_epi32(half), odd = even;
        const uint8_t* from = row;
        for (size_t pair = 0; pair < pairs; ++pair, from += two_pixels, weight += 32) {
            even = _mm256_add_epi32(even, part(from + start[0], from + start[1], at_even, weight));
            odd = _mm256_add_epi32(odd, part(from + start[2], from + start[3], at_odd, weight + 16));
        }
        const __m256i packed = _mm256_packs_epi32(_mm256_srai_epi32(even, shift), _mm256_srai_epi32(odd, shift));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst), packed);
    }
}

void to_fine(const uint8_t* row, const FineTaps& taps, int16_t* dst) {
    if (taps.lanes == 0) return portable_kernels.to_fine(row, taps, dst);
    if (taps.linear) return sum_to_fine<linear_bits - fine_bits, 0, 1>(row, taps, dst);
    constexpr int shift = fine_weight_bits - fine_bits;
    constexpr int32_t half = 1 << (shift - 1);
    if (taps.count <= 2) return sum_to_fine<shift, half, 1>(row, taps, dst);
    if (taps.count <= 4) return sum_to_fine<shift, half, 2>(row, taps, dst);
    sum_to_fine<shift, half, 0>(row, taps, dst);
}

// --- vertical -----------------------------------------------------------------------------------------------

// Calls step(i) for every 16 values; the last call overlaps the one before rather than pass the end.
// Returns false where there are fewer than 16.
template <typename Step>
bool in_steps(size_t count, Step step) {
    if (count < 16) return false;
    size_t i = 0;
    for (; i + 16 <= count; i += 16) step(i);
    if (i < count) step(count - 16);
    return true;
}

// Sixteen 16-bit values to bytes.
__m128i narrowed(__m256i values) {
    return _mm_packus_epi16(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));
}

void blend_bytes(const uint8_t* const* rows, const int32_t* weights, size_t taps, uint8_t* dst, size_t count) {
    const __m256i half = _mm256_set1_epi32(1 << (weight_bits - 1));
    const bool done = in_steps(count, [&](size_t i) {
        __m256i low = half, high = half;
        for (size_t k = 0; k < taps; ++k) {
            const __m128i bytes = load16(rows[k] + i);
            const __m256i weight = _mm256_set1_epi32(weights[k]);
            low = _mm256_add_epi32(low, _mm256_mullo_epi32(_mm256_cvtepu8_epi32(bytes), weight));
            high = _mm256_add_epi32(high, _mm256_mullo_epi32(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)), weight));
        }
        const __m256i mixed =
            _mm256_packs_epi32(_mm256_srai_epi32(low, weight_bits), _mm256_srai_epi32(high, weight_bits));
        store16(dst + i, narrowed(_mm256_permute4x64_epi64(mixed, 0xD8)));
    });
    if (!done) portable_kernels.blend_bytes(rows, weights, taps, dst, count);
}

void blend_fine(const int16_t* const* rows, const int16_t* weights, size_t taps, uint8_t* dst, size_t count) {
    constexpr int shift = fine_bits + fine_weight_bits;
    const __m256i half = _mm256_set1_epi32(1 << (shift - 1));
    const bool done = in_steps(count, [&](size_t i) {
        __m256i low = half, high = half;
        for (size_t k = 0; k < taps; k += 2) {
            // Two rows at a time, the last perhaps with nothing.
            const bool paired = k + 1 < taps;
            const __m256i one = load32(rows[k] + i);
            const __m256i other = paired ? load32(rows[k + 1] + i) : one;
            const int second = paired ? weights[k + 1] : 0;
            const __m256i weight = _mm256_set1_epi32(
                static_cast<int>((static_cast<unsigned>(second) << 16) | static_cast<uint16_t>(weights[k])));
            low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(one, other), weight));
            high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(one, other), weight));
        }
        store16(dst + i, narrowed(_mm256_packs_epi32(_mm256_srai_epi32(low, shift), _mm256_srai_epi32(high, shift))));
    });
    if (!done) portable_kernels.blend_fine(rows, weights, taps, dst, count);
}

void blend_linear(const int16_t* upper, const int16_t* lower, int share, uint8_t* dst, size_t count) {
    const __m256i below = _mm256_set1_epi16(static_cast<int16_t>(share));
    const __m256i above = _mm256_set1_epi16(static_cast<int16_t>((1 << linear_bits) - share));
    const __m256i two = _mm256_set1_epi16(2);
    const bool done = in_steps(count, [&](size_t i) {
        const __m256i sum = _mm256_add_epi16(_mm256_mulhi_epi16(load32(upper + i), above),
                                             _mm256_mulhi_epi16(load32(lower + i), below));
        store16(dst + i, narrowed(_mm256_srai_epi16(_mm256_add_epi16(sum, two), 2)));
    });
    if (!done) portable_kernels.blend_linear(upper, lower, share, dst, count);
}

// --- rearranging and converting -----------------------------------------------------------------------------

void reverse(const uint8_t* src, uint8_t* dst, size_t width, size_t channels) {
    const size_t pixels = 16 / channels;
    uint8_t turned[16];
    for (size_t i = 0; i < 16; ++i) turned[i] = static_cast<uint8_t>(16 - (i / channels + 1) * channels + i % channels);
    const __m128i turn = load16(turned);
    // With three channels a register holds five pixels and a byte, which the next store overwrites.
    size_t left = width;
    for (; left * channels >= 16; left -= pixels, dst += pixels * channels) {
        store16(dst, _mm_shuffle_epi8(load16(src + left * channels - 16), turn));
    }
    portable_kernels.reverse(src, dst, left, channels);
}

// Sixteen pixels are as many registers as channels, and so are their planes: each picks from all of them.
template <size_t channels>
void split_of(const uint8_t* src, uint8_t* dst, size_t dst_stride, size_t width) {
    __m128i picks[channels][channels];
    for (size_t c = 0; c < channels; ++c) {
        uint8_t pick[channels][16];
        std::memset(pick, 255, sizeof pick);
        for (size_t x = 0; x < 16; ++x)
            pick[(x * channels + c) / 16][x] = static_cast<uint8_t>((x * channels + c) % 16);
        for (size_t r = 0; r < channels; ++r) picks[c][r] = load16(pick[r]);
    }
    size_t x = 0;
    for (; x + 16 <= width; x += 16) {
        __m128i in[channels];
        for (size_t r = 0; r < channels; ++r) in[r] = load16(src + x * channels + r * 16);
        for (size_t c = 0; c < channels; ++c) {
            __m128i plane = _mm_shuffle_epi8(in[0], picks[c][0]);
            for (size_t r = 1; r < channels; ++r) plane = _mm_or_si128(plane, _mm_shuffle_epi8(in[r], picks[c][r]));
            store16(dst + c * dst_stride + x, plane);
        }
    }
    portable_kernels.split(src + x * channels, dst + x, dst_stride, width - x, channels);
}

void split(const uint8_t* src, uint8_t* dst, size_t dst_stride, size_t width, size_t channels) {
    switch (channels) {
        case 1: std::memcpy(dst, src, width); return;
        case 2: return split_of<2>(src, dst, dst_stride, width);
        case 3: return split_of<3>(src, dst, dst_stride, width);
        default: return split_of<4>(src, dst, dst_stride, width);
    }
}

__m256 scaled(__m128i bytes, const float* scale, const float* offset) {
    const __m256 values = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
    return _mm256_add_ps(_mm256_mul_ps(values, _mm256_loadu_ps(scale)), _mm256_loadu_ps(offset));
}

void to_float(const uint8_t* src, const float* scale, const float* offset, float* dst, size_t count) {
    const bool done = in_steps(count, [&](size_t i) {
        const __m128i bytes = load16(src + i);
        _mm256_storeu_ps(dst + i, scaled(bytes, scale + i, offset + i));
        _mm256_storeu_ps(dst + i + 8, scaled(_mm_srli_si128(bytes, 8), scale + i + 8, offset + i + 8));
    });
    if (!done) portable_kernels.to_float(src, scale, offset, dst, count);
}

void to_half(const uint8_t* src, const float* scale, const float* offset, uint16_t* dst, size_t count) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT;
    const bool done = in_steps(count, [&](size_t i) {
        const __m128i bytes = load16(src + i);
        store16(dst + i, _mm256_cvtps_ph(scaled(bytes, scale + i, offset + i), nearest));
        store16(dst + i + 8, _mm256_cvtps_ph(scaled(_mm_srli_si128(bytes, 8), scale + i + 8, offset + i + 8), nearest));
    });
    if (!done) portable_kernels.to_half(src, scale, offset, dst, count);
}

const Kernels avx2 = {
    "avx2", &avx2_jpeg_kernels, to_bytes, to_fine, pack, blend_bytes,
    blend_fine, blend_linear, reverse, split, to_float, to_half,
};

}  // namespace
}  // namespace batchplant

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace batchplant {

const Kernels* avx2_kernels() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") ? &avx2 : nullptr;
}

}  // namespace batchplant

#else

namespace batchplant {

const Kernels* avx2_kernels() { return nullptr; }

}  // namespace batchplant

#endif
