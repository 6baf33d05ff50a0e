#include "jpeg_kernels.hpp"

#if defined(__aarch64__)

#include <arm_neon.h>

namespace batchplant {
namespace {

// The parts of the transform hand on more registers than a call could.
#define INLINE inline __attribute__((always_inline))

// --- transform ----------------------------------------------------------------------------------------------

// Products with constants, each constant the sum of those that its value is multiplied with in the plain form.
// They stand in vectors, because products with a lane of one are a single instruction.
struct Constants {
    int16x8_t even = {dct::j + dct::l, dct::j, dct::j - dct::k, 0, 0, 0, 0, 0};
    int16x8_t odd = {dct::i - dct::g, dct::i,          dct::i - dct::h, dct::a - dct::e,
                     -dct::e,         dct::b - dct::f, -dct::f,         dct::c - dct::f};
    int16x4_t last = {dct::d - dct::e, 0, 0, 0};
};

// The halves of the result: out[n] = even[n] + odd[n], out[7 - n] = even[n] - odd[n].
struct Halves {
    int32x4_t even[4], odd[4];
};

// Four lines of eight values. Where not all are there, the last four of each line are zeros.
template <bool all>
INLINE Halves transform_lines(const int16x4_t* x, const Constants& n) {
    Halves out;
    int32x4_t sum, difference, outer, inner;
    outer = vmull_laneq_s16(x[2], n.even, 0);
    inner = vmull_laneq_s16(x[2], n.even, 1);
    if constexpr (all) {
        outer = vmlal_laneq_s16(outer, x[6], n.even, 1);
        inner = vmlal_laneq_s16(inner, x[6], n.even, 2);
        sum = vshll_n_s16(vadd_s16(x[0], x[4]), dct::bits);
        difference = vshll_n_s16(vsub_s16(x[0], x[4]), dct::bits);
    } else {
        sum = difference = vshll_n_s16(x[0], dct::bits);
    }
    out.even[0] = vaddq_s32(sum, outer);
    out.even[1] = vaddq_s32(difference, inner);
    out.even[2] = vsubq_s32(difference, inner);
    out.even[3] = vsubq_s32(sum, outer);

    const int16x4_t low = all ? vadd_s16(x[3], x[7]) : x[3], high = all ? vadd_s16(x[1], x[5]) : x[1];
    const int32x4_t p = vmlal_laneq_s16(vmull_laneq_s16(low, n.odd, 0), high, n.odd, 1);
    const int32x4_t q = vmlal_laneq_s16(vmull_laneq_s16(low, n.odd, 1), high, n.odd, 2);
    out.odd[0] = vmlal_lane_s16(q, x[1], n.last, 0);
    out.odd[1] = vmlal_laneq_s16(p, x[3], n.odd, 7);
    out.odd[2] = vmlal_laneq_s16(q, x[3], n.odd, 6);
    out.odd[3] = vmlal_laneq_s16(p, x[1], n.odd, 4);
    if constexpr (all) {
        out.odd[0] = vmlal_laneq_s16(out.odd[0], x[7], n.odd, 4);
        out.odd[1] = vmlal_laneq_s16(out.odd[1], x[5], n.odd, 6);
        out.odd[2] = vmlal_laneq_s16(out.odd[2], x[5], n.odd, 5);
        out.odd[3] = vmlal_laneq_s16(out.odd[3], x[7], n.odd, 3);
    }
    return out;
}

// Four columns: out[y] are the values of row y.
template <bool all>
INLINE void transform_columns(const int16x4_t* x, const Constants& constants, int16x4_t* out) {
    const Halves halves = transform_lines<all>(x, constants);
    for (size_t n = 0; n < 4; ++n) {
        out[n] = vrshrn_n_s32(vaddq_s32(halves.even[n], halves.odd[n]), dct::first_shift);
        out[7 - n] = vrshrn_n_s32(vsubq_s32(halves.even[n], halves.odd[n]), dct::first_shift);
    }
}

INLINE void transpose(const int16x4_t* rows, int16x4_t* columns) {
    const auto wide = [](int16x4_t v) { return vreinterpret_s32_s16(v); };
    const auto narrow = [](int32x2_t v) { return vreinterpret_s16_s32(v); };
    const int32x2_t a = wide(vtrn1_s16(rows[0], rows[1])), b = wide(vtrn2_s16(rows[0], rows[1]));
    const int32x2_t c = wide(vtrn1_s16(rows[2], rows[3])), d = wide(vtrn2_s16(rows[2], rows[3]));
    columns[0] = narrow(vtrn1_s32(a, c));
    columns[1] = narrow(vtrn1_s32(b, d));
    columns[2] = narrow(vtrn2_s32(a, c));
    columns[3] = narrow(vtrn2_s32(b, d));
}

// Bytes of eight rows; upper and lower hold column by column those of the first and the last four rows. The
// upper halves of the sums are taken first, then the rest of the shift rounds.
INLINE void store_rows(const Halves& upper, const Halves& lower, uint8_t* dst, size_t stride) {
    uint8x8_t column[8];
    const auto finish = [](int16x4_t top, int16x4_t bottom) {
        const int8x8_t value = vqrshrn_n_s16(vcombine_s16(top, bottom), dct::second_shift - 16);
        return veor_u8(vreinterpret_u8_s8(value), vdup_n_u8(128));
    };
    for (size_t n = 0; n < 4; ++n) {
        column[n] = finish(vaddhn_s32(upper.even[n], upper.odd[n]), vaddhn_s32(lower.even[n], lower.odd[n]));
        column[7 - n] = finish(vsubhn_s32(upper.even[n], upper.odd[n]), vsubhn_s32(lower.even[n], lower.odd[n]));
    }
    // Columns 0, 4 beside each other and so on; three times interleaved they are rows.
    uint8x16_t a[4], b[4];
    for (size_t n = 0; n < 4; ++n) a[n] = vcombine_u8(column[n], column[n + 4]);
    for (size_t n = 0; n < 2; ++n) {
        b[2 * n] = vzip1q_u8(a[n], a[n + 2]);      // columns n, n + 2
        b[2 * n + 1] = vzip2q_u8(a[n], a[n + 2]);  // columns n + 4, n + 6
    }
    const uint8x16_t left[2] = {vzip1q_u8(b[0], b[2]), vzip2q_u8(b[0], b[2])};
    const uint8x16_t right[2] = {vzip1q_u8(b[1], b[3]), vzip2q_u8(b[1], b[3])};
    for (size_t n = 0; n < 2; ++n) {
        const uint32x4_t l = vreinterpretq_u32_u8(left[n]), r = vreinterpretq_u32_u8(right[n]);
        const uint8x16_t first = vreinterpretq_u8_u32(vzip1q_u32(l, r));
        const uint8x16_t second = vreinterpretq_u8_u32(vzip2q_u32(l, r));
        vst1_u8(dst, vget_low_u8(first));
        vst1_u8(dst + stride, vget_high_u8(first));
        vst1_u8(dst + 2 * stride, vget_low_u8(second));
        vst1_u8(dst + 3 * stride, vget_high_u8(second));
        dst += 4 * stride;
    }
}

void transform_block(const DctBlock& block) {
    const auto [coefficients, steps, last, dst, stride] = block;
    if (last == 0) {
        const int8x8_t value = vqrshrn_n_s16(vdupq_n_s16(static_cast<int16_t>(coefficients[0] * steps[0])), 3);
        const uint8x8_t row = veor_u8(vreinterpret_u8_s8(value), vdup_n_u8(128));
        for (size_t y = 0; y < 8; ++y) vst1_u8(dst + y * stride, row);
        return;
    }
    const Constants constants;
    const auto load = [&](size_t at) { return vmul_s16(vld1_s16(coefficients + at), vld1_s16(steps + at)); };
    int16x4_t x[8], left[8], right[8], columns[8];
    // The first ten lie in the corner of 4 x 4.
    if (last < 10) {
        for (size_t y = 0; y < 4; ++y) x[y] = load(8 * y);
        transform_columns<false>(x, constants, left);
        transpose(left, columns);
        const Halves upper = transform_lines<false>(columns, constants);
        transpose(left + 4, columns);
        const Halves lower = transform_lines<false>(columns, constants);
        return store_rows(upper, lower, dst, stride);
    }
    for (size_t y = 0; y < 8; ++y) x[y] = load(8 * y);
    transform_columns<true>(x, constants, left);
    for (size_t y = 0; y < 8; ++y) x[y] = load(8 * y + 4);
    transform_columns<true>(x, constants, right);
    transpose(left, columns);
    transpose(right, columns + 4);
    const Halves upper = transform_lines<true>(columns, constants);
    transpose(left + 4, columns);
    transpose(right + 4, columns + 4);
    const Halves lower = transform_lines<true>(columns, constants);
    store_rows(upper, lower, dst, stride);
}

void transform(const DctBlock* blocks, size_t count) {
    for (size_t n = 0; n < count; ++n) transform_block(blocks[n]);
}

uint64_t sum_sizes(const int16_t* coefficients) {
    uint32x4_t sum = vdupq_n_u32(0);
    for (size_t n = 0; n < 64; n += 8) {
        sum = vpadalq_u16(sum, vreinterpretq_u16_s16(vabsq_s16(vld1q_s16(coefficients + n))));
    }
    return vaddvq_u32(sum);
}

// --- rows ---------------------------------------------------------------------------------------------------

void widen(const uint8_t* src, uint8_t* dst, size_t count) {
    const uint8x16_t three = vdupq_n_u8(3);
    for (size_t x = 0; x < count; x += 16) {
        const uint8x16_t center = vld1q_u8(src + x), before = vld1q_u8(src + x - 1), after = vld1q_u8(src + x + 1);
        const uint16x8_t low = vmull_u8(vget_low_u8(center), vget_low_u8(three)), high = vmull_high_u8(center, three);
        const uint16x8_t one = vdupq_n_u16(1);
        const uint16x8_t even_low = vaddq_u16(vaddw_u8(low, vget_low_u8(before)), one);
        const uint16x8_t even_high = vaddq_u16(vaddw_high_u8(high, before), one);
        const uint16x8_t odd_low = vaddw_u8(low, vget_low_u8(after)), odd_high = vaddw_high_u8(high, after);
        uint8x16x2_t out;
        out.val[0] = vshrn_high_n_u16(vshrn_n_u16(even_low, 2), even_high, 2);
        out.val[1] = vrshrn_high_n_u16(vrshrn_n_u16(odd_low, 2), odd_high, 2);
        vst2q_u8(dst + 2 * x, out);
    }
}

uint16x8_t between(const uint8_t* near, const uint8_t* far) {
    return vmlal_u8(vmovl_u8(vld1_u8(far)), vld1_u8(near), vdup_n_u8(3));
}

void widen_between(const uint8_t* near, const uint8_t* far, uint8_t* dst, size_t count) {
    const uint16x8_t seven = vdupq_n_u16(7);
    uint16x8_t center = between(near, far), before = vdupq_n_u16(static_cast<uint16_t>(3 * near[-1] + far[-1]));
    for (size_t x = 0; x < count; x += 8) {
        const uint16x8_t next = between(near + x + 8, far + x + 8);
        const uint16x8_t left = vextq_u16(before, center, 7), right = vextq_u16(center, next, 1);
        uint8x8x2_t out;
        out.val[0] = vrshrn_n_u16(vmlaq_n_u16(left, center, 3), 4);
        out.val[1] = vshrn_n_u16(vaddq_u16(vmlaq_n_u16(right, center, 3), seven), 4);
        vst2_u8(dst + 2 * x, out);
        before = center;
        center = next;
    }
}

int16x8_t green_of(int16x8_t cb, int16x8_t cr) {
    int32x4_t low = vmull_n_s16(vget_low_s16(cb), colour::green_cb), high = vmull_high_n_s16(cb, colour::green_cb);
    low = vmlal_n_s16(low, vget_low_s16(cr), colour::rest_green);
    high = vmlal_high_n_s16(high, cr, colour::rest_green);
    return vsubq_s16(vrshrn_high_n_s32(vrshrn_n_s32(low, 16), high, 16), cr);
}

// The brightness plus a colour's share, saturated to bytes.
uint8x8_t add_saturated(uint8x8_t y, int16x8_t share) {
    return vqmovun_s16(vreinterpretq_s16_u16(vaddw_u8(vreinterpretq_u16_s16(share), y)));
}

void to_rgb(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, uint8_t* dst, size_t count) {
    const uint8x8_t middle = vdup_n_u8(128);
    for (size_t x = 0; x < count; x += 16) {
        uint8x8_t part[3][2];
        for (size_t half = 0; half < 2; ++half) {
            const size_t at = x + 8 * half;
            const uint8x8_t light = vld1_u8(y + at);
            const int16x8_t blue = vreinterpretq_s16_u16(vsubl_u8(vld1_u8(cb + at), middle));
            const int16x8_t red = vreinterpretq_s16_u16(vsubl_u8(vld1_u8(cr + at), middle));
            part[0][half] = add_saturated(light, vaddq_s16(red, vqrdmulhq_n_s16(red, colour::half_red)));
            part[1][half] = add_saturated(light, green_of(blue, red));
            part[2][half] =
                add_saturated(light, vaddq_s16(vaddq_s16(blue, blue), vqrdmulhq_n_s16(blue, colour::half_blue)));
        }
        uint8x16x3_t out;
        for (size_t c = 0; c < 3; ++c) out.val[c] = vcombine_u8(part[c][0], part[c][1]);
        vst3q_u8(dst + 3 * x, out);
    }
}

void gray_to_rgb(const uint8_t* y, uint8_t* dst, size_t count) {
    for (size_t x = 0; x < count; x += 16) {
        const uint8x16_t value = vld1q_u8(y + x);
        vst3q_u8(dst + 3 * x, uint8x16x3_t{{value, value, value}});
    }
}

}  // namespace

const JpegKernels neon_jpeg_kernels = {transform, sum_sizes, widen, widen_between, to_rgb, gray_to_rgb};

}  // namespace batchplant

#endif
