#include "kernels.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "jpeg_kernels.hpp"

// Everything but the last function runs only on processors with AVX2, which is detected at run time.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif

namespace batchplant {
namespace {

using Vec = __m256i;
using FloatVec = __m256;

__m128i load128(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
void store128(void* to, __m128i value) { _mm_storeu_si128(static_cast<__m128i*>(to), value); }

Vec load(const void* from) { return _mm256_loadu_si256(static_cast<const Vec*>(from)); }
void store(void* to, Vec value) { _mm256_storeu_si256(static_cast<Vec*>(to), value); }
Vec set32(int32_t value) { return _mm256_set1_epi32(value); }
Vec set16(int16_t value) { return _mm256_set1_epi16(value); }
Vec add32(Vec a, Vec b) { return _mm256_add_epi32(a, b); }
Vec add16(Vec a, Vec b) { return _mm256_add_epi16(a, b); }
Vec mul_high16(Vec a, Vec b) { return _mm256_mulhi_epi16(a, b); }
Vec widen_mul_pairwise_add(Vec a, Vec b) { return _mm256_madd_epi16(a, b); }
Vec bit_and(Vec a, Vec b) { return _mm256_and_si256(a, b); }
Vec interleave_lower16(Vec a, Vec b) { return _mm256_unpacklo_epi16(a, b); }
Vec interleave_upper16(Vec a, Vec b) { return _mm256_unpackhi_epi16(a, b); }
Vec reorder_demote2_to16(Vec a, Vec b) { return _mm256_packs_epi32(a, b); }
Vec table_lookup_bytes(Vec bytes, Vec indices) { return _mm256_shuffle_epi8(bytes, indices); }
template <int n>
Vec shift_right32(Vec a) {
    return _mm256_srai_epi32(a, n);
}
template <int n>
Vec shift_right16(Vec a) {
    return _mm256_srai_epi16(a, n);
}
template <int n>
Vec shift_left32(Vec a) {
    return _mm256_slli_epi32(a, n);
}
template <int k>
Vec broadcast32(Vec a) {
    return _mm256_shuffle_epi32(a, k * 0x55);
}

template <typename Value>
Vec load_blocks(const Value* const* pointers) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load128(pointers[0])), load128(pointers[1]), 1);
}
Vec promote_load16(const uint8_t* from) { return _mm256_cvtepu8_epi16(load128(from)); }
void demote_store8(uint8_t* to, Vec values) {
    store128(to, _mm_packus_epi16(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1)));
}

void store_pixels(uint8_t* to, size_t, Vec values, __m128i indices) {
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));
    store128(to, _mm_shuffle_epi8(bytes, indices));
}

FloatVec load_mul_add(const uint8_t* from, const float* scale, const float* offset) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    const FloatVec values = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
    return _mm256_add_ps(_mm256_mul_ps(values, _mm256_loadu_ps(scale)), _mm256_loadu_ps(offset));
}
void store_floats(float* to, FloatVec values) { _mm256_storeu_ps(to, values); }
void store_halves(uint16_t* to, FloatVec values) {
    const __m128i halves = _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
    store128(to, halves);
}

#include "kernels_x86.hpp"

// These gain nothing from wider vectors, because their bytes cross blocks.

void reverse(const uint8_t* src, uint8_t* dst, size_t width, size_t channels) {
    const size_t pixels = 16 / channels;
    uint8_t reversed[16];
    for (size_t i = 0; i < 16; ++i)
        reversed[i] = static_cast<uint8_t>(16 - (i / channels + 1) * channels + i % channels);
    const __m128i indices = load128(reversed);
    // With three channels a register holds five pixels and a byte, which the next store overwrites.
    size_t left = width;
    for (; left * channels >= 16; left -= pixels, dst += pixels * channels) {
        store128(dst, _mm_shuffle_epi8(load128(src + left * channels - 16), indices));
    }
    portable_kernels.reverse(src, dst, left, channels);
}

// Sixteen pixels are as many registers as channels, and so are their planes: each looks its bytes up in all of them.
template <size_t channels>
void split_of(const uint8_t* src, uint8_t* dst, size_t dst_stride, size_t width) {
    __m128i tables[channels][channels];
    for (size_t c = 0; c < channels; ++c) {
        uint8_t table[channels][16];
        std::memset(table, 255, sizeof table);
        for (size_t x = 0; x < 16; ++x)
            table[(x * channels + c) / 16][x] = static_cast<uint8_t>((x * channels + c) % 16);
        for (size_t r = 0; r < channels; ++r) tables[c][r] = load128(table[r]);
    }
    size_t x = 0;
    for (; x + 16 <= width; x += 16) {
        __m128i in[channels];
        for (size_t r = 0; r < channels; ++r) in[r] = load128(src + x * channels + r * 16);
        for (size_t c = 0; c < channels; ++c) {
            __m128i plane = _mm_shuffle_epi8(in[0], tables[c][0]);
            for (size_t r = 1; r < channels; ++r) plane = _mm_or_si128(plane, _mm_shuffle_epi8(in[r], tables[c][r]));
            store128(dst + c * dst_stride + x, plane);
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
    "avx2",     &avx2_jpeg_kernels, to_bytes, to_fine, pack,     blend_bytes,
    blend_fine, blend_linear,       reverse,  split,   to_float, to_half,
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
