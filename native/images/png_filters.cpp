#include "png_filters.hpp"

#include <cstring>

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace batchplant {
namespace {

// A pixel of up to four bytes in lanes of 16 bits, and the few steps that the filters take. A pixel of
// fewer is read and written as four: what is behind it belongs to the next, which overwrites it.
#if defined(__aarch64__)

using Lanes = int16x4_t;

Lanes load(const uint8_t* from) {
    uint32_t bytes;
    std::memcpy(&bytes, from, sizeof bytes);
    return vreinterpret_s16_u16(vget_low_u16(vmovl_u8(vcreate_u8(bytes))));
}
void store(Lanes lanes, uint8_t* to) {
    const uint8x8_t bytes = vreinterpret_u8_s16(lanes);
    const uint32_t packed = vget_lane_u32(vreinterpret_u32_u8(vuzp1_u8(bytes, bytes)), 0);
    std::memcpy(to, &packed, sizeof packed);
}
Lanes plus(Lanes a, Lanes b) { return vadd_s16(a, b); }
Lanes minus(Lanes a, Lanes b) { return vsub_s16(a, b); }
// Modulo 256: the upper halves are zero, and stay so.
Lanes plus_bytes(Lanes a, Lanes b) {
    return vreinterpret_s16_u8(vadd_u8(vreinterpret_u8_s16(a), vreinterpret_u8_s16(b)));
}
Lanes mean(Lanes a, Lanes b) { return vhadd_s16(a, b); }
Lanes least(Lanes a, Lanes b) { return vmin_s16(a, b); }
Lanes most(Lanes a, Lanes b) { return vmax_s16(a, b); }
// a > b ? yes : no
Lanes choose_greater(Lanes a, Lanes b, Lanes yes, Lanes no) { return vbsl_s16(vcgt_s16(a, b), yes, no); }

#elif defined(__SSE2__)

using Lanes = __m128i;

Lanes load(const uint8_t* from) {
    int32_t bytes;
    std::memcpy(&bytes, from, sizeof bytes);
    return _mm_unpacklo_epi8(_mm_cvtsi32_si128(bytes), _mm_setzero_si128());
}
void store(Lanes lanes, uint8_t* to) {
    const int32_t packed = _mm_cvtsi128_si32(_mm_packus_epi16(lanes, lanes));
    std::memcpy(to, &packed, sizeof packed);
}
Lanes plus(Lanes a, Lanes b) { return _mm_add_epi16(a, b); }
Lanes minus(Lanes a, Lanes b) { return _mm_sub_epi16(a, b); }
// Modulo 256: the upper halves are zero, and stay so.
Lanes plus_bytes(Lanes a, Lanes b) { return _mm_add_epi8(a, b); }
Lanes mean(Lanes a, Lanes b) { return _mm_srli_epi16(_mm_add_epi16(a, b), 1); }
Lanes least(Lanes a, Lanes b) { return _mm_min_epi16(a, b); }
Lanes most(Lanes a, Lanes b) { return _mm_max_epi16(a, b); }
// a > b ? yes : no
Lanes choose_greater(Lanes a, Lanes b, Lanes yes, Lanes no) {
    const __m128i greater = _mm_cmpgt_epi16(a, b);
    return _mm_or_si128(_mm_and_si128(greater, yes), _mm_andnot_si128(greater, no));
}

#else
#error "png_filters.cpp knows arm64 and x86-64 only"
#endif

void unfilter_up(const uint8_t* __restrict row, const uint8_t* __restrict above, uint8_t* __restrict dst,
                 size_t count) {
    for (size_t i = 0; i < count; ++i) dst[i] = static_cast<uint8_t>(row[i] + above[i]);
}

template <size_t step>
void unfilter_sub(const uint8_t* row, uint8_t* dst, size_t count) {
    Lanes left{};
    for (size_t i = 0; i < count; i += step) {
        left = plus_bytes(left, load(row + i));
        store(left, dst + i);
    }
}

template <size_t step>
void unfilter_average(const uint8_t* row, const uint8_t* above, uint8_t* dst, size_t count) {
    Lanes left{};
    for (size_t i = 0; i < count; i += step) {
        left = plus_bytes(mean(left, load(above + i)), load(row + i));
        store(left, dst + i);
    }
}

// The neighbour that is nearest to left + above - corner; left before above before corner. Where that sum lies
// outside of what left and above span it is nearest to one of them, and which one, 3 * corner - left - above tells:
// fewer steps wait for `left` than if three distances were compared.
template <size_t step>
void unfilter_paeth(const uint8_t* row, const uint8_t* above, uint8_t* dst, size_t count) {
    Lanes left{}, corner{};
    for (size_t i = 0; i < count; i += step) {
        const Lanes up = load(above + i), low = least(left, up), high = most(left, up);
        const Lanes edge = minus(minus(plus(plus(corner, corner), corner), up), left);
        const Lanes inner = choose_greater(high, edge, corner, low);
        left = plus_bytes(choose_greater(edge, low, inner, high), load(row + i));
        corner = up;
        store(left, dst + i);
    }
}

template <size_t step>
void unfilter_step(unsigned kind, const uint8_t* row, const uint8_t* above, uint8_t* dst, size_t count) {
    switch (kind) {
        case 1: return unfilter_sub<step>(row, dst, count);
        case 2: return unfilter_up(row, above, dst, count);
        case 3: return unfilter_average<step>(row, above, dst, count);
        case 4: return unfilter_paeth<step>(row, above, dst, count);
        default: std::memcpy(dst, row, count);
    }
}

}  // namespace

void unfilter(unsigned kind, const uint8_t* row, const uint8_t* above, uint8_t* dst, size_t count, size_t step) {
    switch (step) {
        case 1: return unfilter_step<1>(kind, row, above, dst, count);
        case 2: return unfilter_step<2>(kind, row, above, dst, count);
        case 3: return unfilter_step<3>(kind, row, above, dst, count);
        default: return unfilter_step<4>(kind, row, above, dst, count);
    }
}

}  // namespace batchplant
