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

using Wide = __m256i;
using Floats = __m256;

__m128i load16(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
void store16(void* to, __m128i value) { _mm_storeu_si128(static_cast<__m128i*>(to), value); }

Wide load(const void* from) { return _mm256_loadu_si256(static_cast<const Wide*>(from)); }
void store(void* to, Wide value) { _mm256_storeu_si256(static_cast<Wide*>(to), value); }
Wide every32(int32_t value) { return _mm256_set1_epi32(value); }
Wide every16(int16_t value) { return _mm256_set1_epi16(value); }
Wide add32(Wide a, Wide b) { return _mm256_add_epi32(a, b); }
Wide add16(Wide a, Wide b) { return _mm256_add_epi16(a, b); }
Wide above16(Wide a, Wide b) { return _mm256_mulhi_epi16(a, b); }
Wide pairs(Wide a, Wide b) { return _mm256_madd_epi16(a, b); }
Wide both(Wide a, Wide b) { return _mm256_and_si256(a, b); }
Wide low(Wide a, Wide b) { return _mm256_unpacklo_epi16(a, b); }
Wide high(Wide a, Wide b) { return _mm256_unpackhi_epi16(a, b); }
Wide packed(Wide a, Wide b) { return _mm256_packs_epi32(a, b); }
Wide picked(Wide bytes, Wide at) { return _mm256_shuffle_epi8(bytes, at); }
template <int n>
Wide shift32(Wide a) { return _mm256_srai_epi32(a, n); }
template <int n>
Wide shift16(Wide a) { return _mm256_srai_epi16(a, n); }
template <int n>
Wide up32(Wide a) { return _mm256_slli_epi32(a, n); }
template <int k>
Wide spread(Wide a) { return _mm256_shuffle_epi32(a, k * 0x55); }

template <typename Value>
Wide gathered(const Value* const* places) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load16(places[0])), load16(places[1]), 1);
}
Wide widened(const uint8_t* from) {
    return _mm256_cvtepu8_epi16(load16(from));
}
void store_bytes(uint8_t* to, Wide values) {
    store16(to, _mm_packus_epi16(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1)));
}

void store_pixels(uint8_t* to, size_t, Wide values, __m128i keep) {
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));
    store16(to, _mm_shuffle_epi8(bytes, keep));
}

Floats scaled(const uint8_t* from, const float* scale, const float* offset) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    const Floats values = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
    return _mm256_add_ps(_mm256_mul_ps(values, _mm256_loadu_ps(scale)), _mm256_loadu_ps(offset));
}
void store_floats(float* to, Floats values) { _mm256_storeu_ps(to, values); }
void store_halves(uint16_t* to, Floats values) {
    const __m128i halves = _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
    store16(to, halves);
}

#include "kernels_wide.hpp"

// These gain nothing from wider registers: their bytes cross all of one.

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
