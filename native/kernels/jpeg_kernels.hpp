#pragma once

#include <cstddef>
#include <cstdint>

namespace batchplant {

// The loops that make pixels of a JPEG's coefficients, one set for each kind of processor. All compute what
// libjpeg computes with its slow integer DCT and its "fancy" upsampling, bit for bit.

// The numbers that the slow integer DCT is made of, with 13 bits below the point.
namespace dct {

constexpr int bits = 13;
constexpr int first_shift = bits - 2;   // columns keep two bits more than pixels have
constexpr int second_shift = bits + 5;  // those two, and the factor 8 of the whole transform
// cos and sin of multiples of pi / 16 times the square root of two, and their sums, as libjpeg rounds them.
constexpr int a = 2446, b = 16819, c = 25172, d = 12299;
constexpr int e = 7373, f = 20995, g = 16069, h = 3196, i = 9633;
constexpr int j = 4433, k = 15137, l = 6270;

}  // namespace dct

// The numbers of YCbCr to RGB, with 16 bits below the point. Two are taken apart to fit 16 bits:
// red is y + cr + rest_red * cr, blue is y + 2 cb + rest_blue * cb, green y - cr + rest_green * cr + green_cb * cb.
namespace colour {

constexpr int red_cr = 91881, blue_cb = 116130, green_cb = -22554, green_cr = -46802;
constexpr int rest_red = red_cr - 65536, rest_blue = blue_cb - 2 * 65536, rest_green = green_cr + 65536;
// With half of these and a doubling product, as vectors have it, every one of the 256 values comes out the same.
constexpr int half_red = rest_red / 2, half_blue = rest_blue / 2;

}  // namespace colour

// Bytes that rows need at both ends beyond those that are read or written by request.
constexpr size_t jpeg_overrun = 64;

// A block of 8 x 8 pixels and its coefficients, which are to be multiplied with their steps; both in rows.
struct DctBlock {
    const int16_t* coefficients;
    const int16_t* steps;
    size_t last;  // in zigzag order, that may be other than zero
    uint8_t* dst;
    size_t stride;
};

struct JpegKernels {
    // The products must pass dct_is_safe().
    void (*transform)(const DctBlock* blocks, size_t count);

    // Sizes of the coefficients of a block, added up. Sums above 65535 need not be exact, but are not below it.
    uint64_t (*sum_sizes)(const int16_t* coefficients);

    // Twice as many values from `count` of a row, a quarter of a neighbour mixed in. src[-1] and src[count] are
    // neighbours too.
    void (*widen)(const uint8_t* src, uint8_t* dst, size_t count);
    // The same for a row between two: `near` has three quarters, `far` one.
    void (*widen_between)(const uint8_t* near, const uint8_t* far, uint8_t* dst, size_t count);

    void (*to_rgb)(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, uint8_t* dst, size_t count);
    void (*gray_to_rgb)(const uint8_t* y, uint8_t* dst, size_t count);
};

// True if no step of the transform leaves 16 bits, where sets of loops (and libjpeg's own) would differ. Blocks
// of real images are safe. Those whose sizes add up to at most dct_surely_safe need not be asked.
bool dct_is_safe(const int16_t* products);
constexpr int dct_surely_safe = 5500;

extern const JpegKernels portable_jpeg_kernels;
#if defined(__aarch64__)
extern const JpegKernels neon_jpeg_kernels;
#elif defined(__x86_64__)
extern const JpegKernels avx2_jpeg_kernels;
#endif

}  // namespace batchplant
