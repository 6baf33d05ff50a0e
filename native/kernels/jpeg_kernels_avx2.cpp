#include "jpeg_kernels.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

// The whole file runs only on processors with AVX2, which is detected at run time: see kernels_avx2.cpp.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

namespace batchplant {
namespace {

__m128i load128(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
void store128(void* to, __m128i value) { _mm_storeu_si128(static_cast<__m128i*>(to), value); }

// Sixteen bytes as 16-bit values.
__m256i promote_load16(const uint8_t* from) { return _mm256_cvtepu8_epi16(load128(from)); }

// Two constants of 16 bits in each lane of 32 bits, for sums of two products.
__m256i set_pair32(int low, int high) {
    return _mm256_set1_epi32(static_cast<int>(static_cast<uint32_t>(low & 0xFFFF) | static_cast<uint32_t>(high) << 16));
}

// --- transform ----------------------------------------------------------------------------------------------

// Two blocks at once, one in each half of the vectors.
struct Lines {
    __m256i line[8];
};

// Half of the lanes: the values of eight lines, as pairs of lines. Products of pairs make the plain sum of sixteen
// cheaper than the form with fewer products; each constant is the sum of those in that form.
template <int shift>
inline void transform_half(__m256i x04, __m256i x26, __m256i x13, __m256i x57, __m256i* out) {
    using namespace dct;
    const __m256i half = _mm256_set1_epi32(1 << (shift - 1));
    const __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(x04, set_pair32(1 << bits, 1 << bits)), half);
    const __m256i difference = _mm256_add_epi32(_mm256_madd_epi16(x04, set_pair32(1 << bits, -(1 << bits))), half);
    const __m256i outer = _mm256_madd_epi16(x26, set_pair32(j + l, j)),
                  inner = _mm256_madd_epi16(x26, set_pair32(j, j - k));
    const __m256i even[4] = {_mm256_add_epi32(sum, outer), _mm256_add_epi32(difference, inner),
                             _mm256_sub_epi32(difference, inner), _mm256_sub_epi32(sum, outer)};
    const auto four = [&](int a1, int a3, int a5, int a7) {
        return _mm256_add_epi32(_mm256_madd_epi16(x13, set_pair32(a1, a3)), _mm256_madd_epi16(x57, set_pair32(a5, a7)));
    };
    const __m256i odd[4] = {four(d - e + i - h, i, i - h, i - e), four(i, c - f + i - g, i - f, i - g),
                            four(i - h, i - f, b - f + i - h, i), four(i - e, i - g, i, a - e + i - g)};
    for (size_t n = 0; n < 4; ++n) {
        out[n] = _mm256_srai_epi32(_mm256_add_epi32(even[n], odd[n]), shift);
        out[7 - n] = _mm256_srai_epi32(_mm256_sub_epi32(even[n], odd[n]), shift);
    }
}

// Eight lines of eight values, line by lane, rounded and shifted.
template <int shift>
inline Lines transform_lines(const Lines& lines) {
    const auto& x = lines.line;
    __m256i low[8], high[8];
    transform_half<shift>(_mm256_unpacklo_epi16(x[0], x[4]), _mm256_unpacklo_epi16(x[2], x[6]),
                          _mm256_unpacklo_epi16(x[1], x[3]), _mm256_unpacklo_epi16(x[5], x[7]), low);
    transform_half<shift>(_mm256_unpackhi_epi16(x[0], x[4]), _mm256_unpackhi_epi16(x[2], x[6]),
                          _mm256_unpackhi_epi16(x[1], x[3]), _mm256_unpackhi_epi16(x[5], x[7]), high);
    Lines out;
    for (size_t n = 0; n < 8; ++n) out.line[n] = _mm256_packs_epi32(low[n], high[n]);
    return out;
}

inline Lines transpose(const Lines& rows) {
    __m256i a[8], b[8];
    for (size_t n = 0; n < 4; ++n) {  // rows 2 n and 2 n + 1: the first four columns, then the last
        a[n] = _mm256_unpacklo_epi16(rows.line[2 * n], rows.line[2 * n + 1]);
        a[4 + n] = _mm256_unpackhi_epi16(rows.line[2 * n], rows.line[2 * n + 1]);
    }
    for (size_t n = 0; n < 8; n += 2) {  // four rows of two columns
        b[n] = _mm256_unpacklo_epi32(a[n], a[n + 1]);
        b[n + 1] = _mm256_unpackhi_epi32(a[n], a[n + 1]);
    }
    Lines columns;
    for (size_t n = 0; n < 2; ++n) {
        columns.line[4 * n] = _mm256_unpacklo_epi64(b[4 * n], b[4 * n + 2]);
        columns.line[4 * n + 1] = _mm256_unpackhi_epi64(b[4 * n], b[4 * n + 2]);
        columns.line[4 * n + 2] = _mm256_unpacklo_epi64(b[4 * n + 1], b[4 * n + 3]);
        columns.line[4 * n + 3] = _mm256_unpackhi_epi64(b[4 * n + 1], b[4 * n + 3]);
    }
    return columns;
}

// Lines of two blocks.
__m256i load_both(const int16_t* low, const int16_t* high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load128(low)), load128(high), 1);
}

void store_two(uint8_t* dst, size_t stride, __m128i rows) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(dst), rows);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(dst + stride), _mm_unpackhi_epi64(rows, rows));
}

void transform_both(const DctBlock& a, const DctBlock& b) {
    Lines lines;
    for (size_t y = 0; y < 8; ++y) {
        lines.line[y] = _mm256_mullo_epi16(load_both(a.coefficients + 8 * y, b.coefficients + 8 * y),
                                           load_both(a.steps + 8 * y, b.steps + 8 * y));
    }
    lines = transpose(transform_lines<dct::first_shift>(lines));
    lines = transpose(transform_lines<dct::second_shift>(lines));
    const __m256i middle = _mm256_set1_epi8(-128);
    for (size_t y = 0; y < 8; y += 2) {
        const __m256i rows = _mm256_xor_si256(_mm256_packs_epi16(lines.line[y], lines.line[y + 1]), middle);
        store_two(a.dst + y * a.stride, a.stride, _mm256_castsi256_si128(rows));
        store_two(b.dst + y * b.stride, b.stride, _mm256_extracti128_si256(rows, 1));
    }
}

void transform(const DctBlock* blocks, size_t count) {
    const DctBlock* waiting = nullptr;
    for (size_t n = 0; n < count; ++n) {
        const DctBlock& block = blocks[n];
        if (block.last == 0) {
            portable_jpeg_kernels.transform(&block, 1);
        } else if (waiting == nullptr) {
            waiting = &block;
        } else {
            transform_both(*waiting, block);
            waiting = nullptr;
        }
    }
    if (waiting != nullptr) transform_both(*waiting, *waiting);
}

uint64_t sum_sizes(const int16_t* coefficients) {
    __m256i sum = _mm256_setzero_si256();
    for (size_t n = 0; n < 64; n += 16) {
        const auto* from = reinterpret_cast<const __m256i*>(coefficients + n);
        sum = _mm256_adds_epu16(sum, _mm256_abs_epi16(_mm256_loadu_si256(from)));
    }
    // Even and odd lanes as 32 bits, for sums that cannot be too large.
    const __m256i even = _mm256_and_si256(sum, _mm256_set1_epi32(0xFFFF)), odd = _mm256_srli_epi32(sum, 16);
    const __m256i wide = _mm256_add_epi32(even, odd);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    four = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return static_cast<uint64_t>(_mm_cvtsi128_si32(four)) + static_cast<uint64_t>(_mm_extract_epi32(four, 1));
}

// --- rows ---------------------------------------------------------------------------------------------------

__m256i times_three(__m256i value) { return _mm256_add_epi16(value, _mm256_add_epi16(value, value)); }

// Even and odd results as interleaved bytes.
void store_interleaved(uint8_t* dst, __m256i even, __m256i odd) {
    const __m256i bytes = _mm256_or_si256(even, _mm256_slli_epi16(odd, 8));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst), bytes);
}

void widen(const uint8_t* src, uint8_t* dst, size_t count) {
    const __m256i one = _mm256_set1_epi16(1), two = _mm256_set1_epi16(2);
    for (size_t x = 0; x < count; x += 16) {
        const __m256i center = times_three(promote_load16(src + x));
        const __m256i even = _mm256_add_epi16(_mm256_add_epi16(center, promote_load16(src + x - 1)), one);
        const __m256i odd = _mm256_add_epi16(_mm256_add_epi16(center, promote_load16(src + x + 1)), two);
        store_interleaved(dst + 2 * x, _mm256_srli_epi16(even, 2), _mm256_srli_epi16(odd, 2));
    }
}

void widen_between(const uint8_t* near, const uint8_t* far, uint8_t* dst, size_t count) {
    const __m256i seven = _mm256_set1_epi16(7), eight = _mm256_set1_epi16(8);
    const auto between = [&](size_t x) {
        return _mm256_add_epi16(times_three(promote_load16(near + x)), promote_load16(far + x));
    };
    for (size_t x = 0; x < count; x += 16) {
        const __m256i center = times_three(between(x));
        const __m256i even = _mm256_add_epi16(_mm256_add_epi16(center, between(x - 1)), eight);
        const __m256i odd = _mm256_add_epi16(_mm256_add_epi16(center, between(x + 1)), seven);
        store_interleaved(dst + 2 * x, _mm256_srli_epi16(even, 4), _mm256_srli_epi16(odd, 4));
    }
}

__m128i demote_to8(__m256i values) {
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi16(values, values), 0xD8);
    return _mm256_castsi256_si128(packed);
}

// Indices of the 48 bytes of sixteen RGB pixels in their channels; 255 in the other two channels.
struct Interleave3 {
    __m128i from[3][3];

    Interleave3() {
        for (int part = 0; part < 3; ++part) {
            uint8_t at[3][16];
            std::memset(at, 255, sizeof at);
            for (int i = 0; i < 16; ++i) at[(16 * part + i) % 3][i] = static_cast<uint8_t>((16 * part + i) / 3);
            for (int c = 0; c < 3; ++c) from[part][c] = load128(at[c]);
        }
    }
    void store(uint8_t* dst, __m128i red, __m128i green, __m128i blue) const {
        for (int part = 0; part < 3; ++part) {
            const __m128i two =
                _mm_or_si128(_mm_shuffle_epi8(red, from[part][0]), _mm_shuffle_epi8(green, from[part][1]));
            store128(dst + 16 * part, _mm_or_si128(two, _mm_shuffle_epi8(blue, from[part][2])));
        }
    }
};

void to_rgb(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, uint8_t* dst, size_t count) {
    using namespace colour;
    const Interleave3 interleave;
    const __m256i middle = _mm256_set1_epi16(128), half = _mm256_set1_epi32(1 << 15);
    const __m256i red_factor = _mm256_set1_epi16(half_red), blue_factor = _mm256_set1_epi16(half_blue);
    const __m256i green_factors = set_pair32(green_cb, rest_green);
    for (size_t x = 0; x < count; x += 16) {
        const __m256i light = promote_load16(y + x);
        const __m256i blue = _mm256_sub_epi16(promote_load16(cb + x), middle);
        const __m256i red = _mm256_sub_epi16(promote_load16(cr + x), middle);
        const __m256i red_share = _mm256_add_epi16(red, _mm256_mulhrs_epi16(red, red_factor));
        const __m256i blue_share =
            _mm256_add_epi16(_mm256_add_epi16(blue, blue), _mm256_mulhrs_epi16(blue, blue_factor));
        const __m256i low = _mm256_madd_epi16(_mm256_unpacklo_epi16(blue, red), green_factors);
        const __m256i high = _mm256_madd_epi16(_mm256_unpackhi_epi16(blue, red), green_factors);
        const __m256i green = _mm256_packs_epi32(_mm256_srai_epi32(_mm256_add_epi32(low, half), 16),
                                                 _mm256_srai_epi32(_mm256_add_epi32(high, half), 16));
        interleave.store(dst + 3 * x, demote_to8(_mm256_add_epi16(light, red_share)),
                         demote_to8(_mm256_add_epi16(light, _mm256_sub_epi16(green, red))),
                         demote_to8(_mm256_add_epi16(light, blue_share)));
    }
}

void gray_to_rgb(const uint8_t* y, uint8_t* dst, size_t count) {
    const Interleave3 interleave;
    for (size_t x = 0; x < count; x += 16) {
        const __m128i value = load128(y + x);
        interleave.store(dst + 3 * x, value, value, value);
    }
}

}  // namespace

const JpegKernels avx2_jpeg_kernels = {transform, sum_sizes, widen, widen_between, to_rgb, gray_to_rgb};

}  // namespace batchplant

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
