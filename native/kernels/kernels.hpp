#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace batchplant {

// The loops over pixels, one set for each kind of processor. All sets compute the same integers and round
// the same way, so images do not depend on the machine.
//
// "Fine" values are pixels times 128 in 16 bits: what a row is between the horizontal and the vertical pass
// where it is not rounded to bytes.

// Rows that the horizontal kernels read must be followed by this many readable bytes, and rows they write
// by this many values' room: they work on whole registers.
constexpr size_t overrun = 32;

constexpr int weight_bits = 22;       // of Taps and blend_bytes; Pillow's number
constexpr int fine_bits = 7;          // of fine values
constexpr int fine_weight_bits = 14;  // of FineTaps and blend_fine
constexpr int linear_bits = 11;       // of FineTaps and blend_linear; OpenCV's number

// A horizontal pass to bytes: result x is the sum of pixels first[x] + k times weight[x * stride + k], k < count.
struct Taps {
    size_t width = 0;
    size_t channels = 0;
    size_t count = 0;
    size_t stride = 0;  // count rounded up to a multiple of 4, the rest zeros
    std::vector<int32_t> first;
    std::vector<int32_t> weight;
};

// A horizontal pass to fine values, with smaller weights: of 14 bits and rounded, or of 11 bits and cut, as
// OpenCV does where it blends two neighbours.
struct FineTaps {
    size_t width = 0;
    size_t channels = 0;
    size_t count = 0;
    bool linear = false;  // 11 bits
    std::vector<int32_t> first;
    std::vector<int16_t> weight;  // `count` for each result
    // The same in the order that the kernel wants it, by Kernels::pack, for so many values at a time; 0 where
    // it cannot.
    size_t lanes = 0;
    std::vector<int32_t> starts;
    std::vector<uint8_t> shuffles;
    std::vector<int16_t> weights;
};

struct JpegKernels;

struct Kernels {
    const char* name;
    const JpegKernels* jpeg;  // see jpeg_kernels.hpp

    // Horizontal passes. Bytes are rounded and cut to 0..255.
    void (*to_bytes)(const uint8_t* row, const Taps& taps, uint8_t* dst);
    // Needs pack() to have been called on the taps.
    void (*to_fine)(const uint8_t* row, const FineTaps& taps, int16_t* dst);
    void (*pack)(FineTaps& taps);

    // Vertical passes over `count` values of each row; these never write past the end.
    void (*blend_bytes)(const uint8_t* const* rows, const int32_t* weights, size_t taps, uint8_t* dst, size_t count);
    void (*blend_fine)(const int16_t* const* rows, const int16_t* weights, size_t taps, uint8_t* dst, size_t count);
    // The lower row has weight share / 2048. Each product is cut to two bits below the pixel, as in OpenCV.
    void (*blend_linear)(const int16_t* upper, const int16_t* lower, int share, uint8_t* dst, size_t count);

    // Pixels of 1 to 4 channels from right to left.
    void (*reverse)(const uint8_t* src, uint8_t* dst, size_t width, size_t channels);
    // Pixels of 1 to 4 channels to a row of each channel, the rows dst_stride apart.
    void (*split)(const uint8_t* src, uint8_t* dst, size_t dst_stride, size_t width, size_t channels);

    // value * scale[i] + offset[i], in single precision; to_half then rounds to the nearest half.
    void (*to_float)(const uint8_t* src, const float* scale, const float* offset, float* dst, size_t count);
    void (*to_half)(const uint8_t* src, const float* scale, const float* offset, uint16_t* dst, size_t count);
};

// The sets that this machine can run, the best first.
const std::vector<const Kernels*>& all_kernels();
inline const Kernels& best_kernels() { return *all_kernels().front(); }

// The set that every machine can run.
extern const Kernels portable_kernels;

// Sets for some machines; null where this build has none or the processor lacks what it needs.
const Kernels* neon_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();

// True if AVX-512 is faster than AVX2 here, as it is on processors with VBMI2 (Ice Lake, Zen 4 and later). Those before
// slow their clock for it: resampling gains what decoding loses.
bool prefers_avx512();

// IEEE half precision of a float, rounded to nearest even.
uint16_t half_of(float value);

}  // namespace batchplant
