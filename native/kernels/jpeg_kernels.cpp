#include "jpeg_kernels.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace batchplant {
namespace {

uint8_t to_byte(int value) { return static_cast<uint8_t>(std::clamp(value, 0, 255)); }

// Eight values in one direction, not yet shifted back. The even half is a rotation by 6 pi / 16, the odd half
// four products less than a plain sum of sixteen.
template <typename Value>
void transform_line(const Value* in, size_t step, int* out) {
    using namespace dct;
    const int x0 = in[0], x1 = in[step], x2 = in[2 * step], x3 = in[3 * step];
    const int x4 = in[4 * step], x5 = in[5 * step], x6 = in[6 * step], x7 = in[7 * step];
    const int sum = (x0 + x4) * (1 << bits), difference = (x0 - x4) * (1 << bits);
    const int inner = (x2 + x6) * j - x6 * k, outer = (x2 + x6) * j + x2 * l;
    const int even[4] = {sum + outer, difference + inner, difference - inner, sum - outer};
    const int all_odd = (x1 + x3 + x5 + x7) * i;
    const int p = all_odd - (x3 + x7) * g, q = all_odd - (x1 + x5) * h;
    const int r = (x1 + x7) * e, s = (x3 + x5) * f;
    const int odd[4] = {x1 * d - r + q, x3 * c - s + p, x5 * b - s + q, x7 * a - r + p};
    for (size_t n = 0; n < 4; ++n) {
        out[n] = even[n] + odd[n];
        out[7 - n] = even[n] - odd[n];
    }
}

int shift_rounded(int value, int shift) { return (value + (1 << (shift - 1))) >> shift; }

void transform_block(const DctBlock& block) {
    uint8_t* dst = block.dst;
    if (block.last == 0) {
        const uint8_t value = to_byte(128 + shift_rounded(block.coefficients[0] * block.steps[0], 3));
        for (size_t y = 0; y < 8; ++y) std::memset(dst + y * block.stride, value, 8);
        return;
    }
    int columns[64], line[8];
    for (size_t n = 0; n < 64; ++n) columns[n] = block.coefficients[n] * block.steps[n];
    for (size_t x = 0; x < 8; ++x) {
        transform_line(columns + x, 8, line);
        for (size_t y = 0; y < 8; ++y) columns[y * 8 + x] = shift_rounded(line[y], dct::first_shift);
    }
    for (size_t y = 0; y < 8; ++y, dst += block.stride) {
        transform_line(columns + y * 8, 1, line);
        for (size_t x = 0; x < 8; ++x) dst[x] = to_byte(128 + shift_rounded(line[x], dct::second_shift));
    }
}

void transform(const DctBlock* blocks, size_t count) { std::for_each_n(blocks, count, transform_block); }

uint64_t sum_sizes(const int16_t* coefficients) {
    int sum = 0;
    for (size_t n = 0; n < 64; ++n) sum += std::abs(int{coefficients[n]});
    return static_cast<uint64_t>(sum);
}

void widen(const uint8_t* src, uint8_t* dst, size_t count) {
    for (size_t x = 0; x < count; ++x, ++src) {
        dst[2 * x] = static_cast<uint8_t>((3 * src[0] + src[-1] + 1) >> 2);
        dst[2 * x + 1] = static_cast<uint8_t>((3 * src[0] + src[1] + 2) >> 2);
    }
}

void widen_between(const uint8_t* near, const uint8_t* far, uint8_t* dst, size_t count) {
    for (size_t x = 0; x < count; ++x, ++near, ++far) {
        const int center = 3 * near[0] + far[0];
        dst[2 * x] = static_cast<uint8_t>((3 * center + 3 * near[-1] + far[-1] + 8) >> 4);
        dst[2 * x + 1] = static_cast<uint8_t>((3 * center + 3 * near[1] + far[1] + 7) >> 4);
    }
}

void to_rgb(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, uint8_t* dst, size_t count) {
    using namespace colour;
    constexpr int half = 1 << 15;
    for (size_t x = 0; x < count; ++x, dst += 3) {
        const int blue = cb[x] - 128, red = cr[x] - 128;
        dst[0] = to_byte(y[x] + ((red_cr * red + half) >> 16));
        dst[1] = to_byte(y[x] + ((green_cb * blue + green_cr * red + half) >> 16));
        dst[2] = to_byte(y[x] + ((blue_cb * blue + half) >> 16));
    }
}

void gray_to_rgb(const uint8_t* y, uint8_t* dst, size_t count) {
    for (size_t x = 0; x < count; ++x, dst += 3) dst[0] = dst[1] = dst[2] = y[x];
}

}  // namespace

bool dct_is_safe(const int16_t* products) {
    // Sums of up to four are formed in 16 bits.
    constexpr int max_value = 8191;
    for (size_t n = 0; n < 64; ++n) {
        if (std::abs(int{products[n]}) > max_value) return false;
    }
    int line[8];
    for (size_t x = 0; x < 8; ++x) {
        transform_line(products + x, 8, line);
        for (const int value : line) {
            if (std::abs(shift_rounded(value, dct::first_shift)) > max_value) return false;
        }
    }
    return true;
}

const JpegKernels portable_jpeg_kernels = {transform, sum_sizes, widen, widen_between, to_rgb, gray_to_rgb};

}  // namespace batchplant
