#include "kernels.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "jpeg_kernels.hpp"

// Everything but the last function runs only on processors with AVX-512, which is detected at run time.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
// The compiler's own header leaves vectors uninitialized on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace batchplant {
namespace {

using Vec = __m512i;
using FloatVec = __m512;

__m128i load128(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
void store128(void* to, __m128i value) { _mm_storeu_si128(static_cast<__m128i*>(to), value); }

Vec load(const void* from) { return _mm512_loadu_si512(from); }
void store(void* to, Vec value) { _mm512_storeu_si512(to, value); }
Vec set32(int32_t value) { return _mm512_set1_epi32(value); }
Vec set16(int16_t value) { return _mm512_set1_epi16(value); }
Vec add32(Vec a, Vec b) { return _mm512_add_epi32(a, b); }
Vec add16(Vec a, Vec b) { return _mm512_add_epi16(a, b); }
Vec mul_high16(Vec a, Vec b) { return _mm512_mulhi_epi16(a, b); }
Vec widen_mul_pairwise_add(Vec a, Vec b) { return _mm512_madd_epi16(a, b); }
Vec bit_and(Vec a, Vec b) { return _mm512_and_si512(a, b); }
Vec interleave_lower16(Vec a, Vec b) { return _mm512_unpacklo_epi16(a, b); }
Vec interleave_upper16(Vec a, Vec b) { return _mm512_unpackhi_epi16(a, b); }
Vec reorder_demote2_to16(Vec a, Vec b) { return _mm512_packs_epi32(a, b); }
Vec table_lookup_bytes(Vec bytes, Vec indices) { return _mm512_shuffle_epi8(bytes, indices); }
template <int n>
Vec shift_right32(Vec a) {
    return _mm512_srai_epi32(a, n);
}
template <int n>
Vec shift_right16(Vec a) {
    return _mm512_srai_epi16(a, n);
}
template <int n>
Vec shift_left32(Vec a) {
    return _mm512_slli_epi32(a, n);
}
template <int k>
Vec broadcast32(Vec a) {
    return _mm512_shuffle_epi32(a, static_cast<_MM_PERM_ENUM>(k * 0x55));
}

template <typename Value>
Vec load_blocks(const Value* const* pointers) {
    Vec blocks = _mm512_castsi128_si512(load128(pointers[0]));
    blocks = _mm512_inserti32x4(blocks, load128(pointers[1]), 1);
    blocks = _mm512_inserti32x4(blocks, load128(pointers[2]), 2);
    return _mm512_inserti32x4(blocks, load128(pointers[3]), 3);
}
Vec promote_load16(const uint8_t* from) {
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
void demote_store8(uint8_t* to, Vec values) {
    const Vec positive = _mm512_max_epi16(values, _mm512_setzero_si512());
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtusepi16_epi8(positive));
}

void store_pixels(uint8_t* to, size_t apart, Vec values, __m128i indices) {
    const __m256i bytes = _mm512_cvtusepi16_epi8(_mm512_max_epi16(values, _mm512_setzero_si512()));
    const __m256i pixels = _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(indices));
    store128(to, _mm256_castsi256_si128(pixels));
    store128(to + apart, _mm256_extracti128_si256(pixels, 1));
}

FloatVec load_mul_add(const uint8_t* from, const float* scale, const float* offset) {
    const __m128i bytes = load128(from);
    const FloatVec values = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
    return _mm512_add_ps(_mm512_mul_ps(values, _mm512_loadu_ps(scale)), _mm512_loadu_ps(offset));
}
void store_floats(float* to, FloatVec values) { _mm512_storeu_ps(to, values); }
void store_halves(uint16_t* to, FloatVec values) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
}

#include "kernels_x86.hpp"

}  // namespace
}  // namespace batchplant

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace batchplant {

const Kernels* avx512_kernels() {
    for (const bool has : {__builtin_cpu_supports("avx512f"), __builtin_cpu_supports("avx512bw"),
                           __builtin_cpu_supports("avx512dq"), __builtin_cpu_supports("avx512vl")}) {
        if (!has) return nullptr;
    }
    const Kernels* narrower = avx2_kernels();
    if (narrower == nullptr) return nullptr;
    static const Kernels avx512 = {
        "avx512",   narrower->jpeg, to_bytes,          to_fine,         pack,     blend_bytes,
        blend_fine, blend_linear,   narrower->reverse, narrower->split, to_float, to_half,
    };
    return &avx512;
}

bool prefers_avx512() { return avx512_kernels() != nullptr && __builtin_cpu_supports("avx512vbmi2"); }

}  // namespace batchplant

#else

namespace batchplant {

const Kernels* avx512_kernels() { return nullptr; }

bool prefers_avx512() { return false; }

}  // namespace batchplant

#endif
