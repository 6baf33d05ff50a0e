#include "kernels.hpp"

#include <algorithm>
#include <bit>

#include "jpeg_kernels.hpp"

namespace batchplant {
namespace {

uint8_t to_byte(int32_t value) { return static_cast<uint8_t>(std::clamp(value, 0, 255)); }

// `fixed` is the channel count where it is known at compile time, else 0.
template <size_t fixed>
void to_bytes_of(const uint8_t* row, const Taps& taps, uint8_t* dst) {
    const size_t channels = fixed ? fixed : taps.channels, width = taps.width, count = taps.count;
    const int32_t* weight = taps.weight.data();
    const int32_t* first = taps.first.data();
    for (size_t x = 0; x < width; ++x, weight += taps.stride) {
        constexpr int32_t half = 1 << (weight_bits - 1);
        int32_t sums[4] = {half, half, half, half};
        const uint8_t* pixel = row + static_cast<size_t>(first[x]) * channels;
        for (size_t k = 0; k < count; ++k, pixel += channels) {
            for (size_t c = 0; c < channels; ++c) sums[c] += pixel[c] * weight[k];
        }
        for (size_t c = 0; c < channels; ++c) *dst++ = to_byte(sums[c] >> weight_bits);
    }
}

template <size_t fixed>
void to_fine_of(const uint8_t* row, const FineTaps& taps, int16_t* dst) {
    const size_t channels = fixed ? fixed : taps.channels, width = taps.width, count = taps.count;
    const int shift = (taps.linear ? linear_bits : fine_weight_bits) - fine_bits;
    const int32_t half = taps.linear ? 0 : 1 << (shift - 1);
    const int16_t* weight = taps.weight.data();
    const int32_t* first = taps.first.data();
    for (size_t x = 0; x < width; ++x, weight += count) {
        int32_t sums[4] = {half, half, half, half};
        const uint8_t* pixel = row + static_cast<size_t>(first[x]) * channels;
        for (size_t k = 0; k < count; ++k, pixel += channels) {
            for (size_t c = 0; c < channels; ++c) sums[c] += pixel[c] * weight[k];
        }
        for (size_t c = 0; c < channels; ++c) *dst++ = static_cast<int16_t>(sums[c] >> shift);
    }
}

void to_bytes(const uint8_t* row, const Taps& taps, uint8_t* dst) {
    switch (taps.channels) {
        case 1: return to_bytes_of<1>(row, taps, dst);
        case 3: return to_bytes_of<3>(row, taps, dst);
        case 4: return to_bytes_of<4>(row, taps, dst);
        default: return to_bytes_of<0>(row, taps, dst);
    }
}

void to_fine(const uint8_t* row, const FineTaps& taps, int16_t* dst) {
    switch (taps.channels) {
        case 1: return to_fine_of<1>(row, taps, dst);
        case 3: return to_fine_of<3>(row, taps, dst);
        case 4: return to_fine_of<4>(row, taps, dst);
        default: return to_fine_of<0>(row, taps, dst);
    }
}

void pack(FineTaps&) {}

// The vertical loops work on a strip at a time, with plain indices and no branches inside, the shape that
// compilers turn into vector code.
constexpr size_t strip = 64;

void blend_bytes(const uint8_t* const* rows, const int32_t* weights, size_t taps, uint8_t* dst, size_t count) {
    for (size_t from = 0; from < count; from += strip) {
        const size_t width = std::min(strip, count - from);
        int32_t sums[strip];
        std::fill_n(sums, strip, 1 << (weight_bits - 1));
        for (size_t k = 0; k < taps; ++k) {
            const uint8_t* row = rows[k] + from;
            for (size_t i = 0; i < width; ++i) sums[i] += row[i] * weights[k];
        }
        for (size_t i = 0; i < width; ++i) dst[from + i] = to_byte(sums[i] >> weight_bits);
    }
}

void blend_fine(const int16_t* const* rows, const int16_t* weights, size_t taps, uint8_t* dst, size_t count) {
    for (size_t from = 0; from < count; from += strip) {
        const size_t width = std::min(strip, count - from);
        constexpr int shift = fine_bits + fine_weight_bits;
        int32_t sums[strip];
        std::fill_n(sums, strip, 1 << (shift - 1));
        for (size_t k = 0; k < taps; ++k) {
            const int16_t* row = rows[k] + from;
            for (size_t i = 0; i < width; ++i) sums[i] += row[i] * weights[k];
        }
        for (size_t i = 0; i < width; ++i) dst[from + i] = to_byte(sums[i] >> shift);
    }
}

void blend_linear(const int16_t* upper, const int16_t* lower, int share, uint8_t* dst, size_t count) {
    const int rest = (1 << linear_bits) - share;
    // 7 + 11 bits lie below the pixel; 16 of them are cut from each product, and the last two rounded off.
    for (size_t i = 0; i < count; ++i) {
        dst[i] = static_cast<uint8_t>((((upper[i] * rest) >> 16) + ((lower[i] * share) >> 16) + 2) >> 2);
    }
}

void reverse(const uint8_t* src, uint8_t* dst, size_t width, size_t channels) {
    for (size_t x = 0; x < width; ++x) {
        for (size_t c = 0; c < channels; ++c) dst[x * channels + c] = src[(width - 1 - x) * channels + c];
    }
}

void split(const uint8_t* src, uint8_t* dst, size_t dst_stride, size_t width, size_t channels) {
    for (size_t c = 0; c < channels; ++c) {
        for (size_t x = 0; x < width; ++x) dst[c * dst_stride + x] = src[x * channels + c];
    }
}

void to_float(const uint8_t* __restrict src, const float* __restrict scale, const float* __restrict offset,
              float* __restrict dst, size_t count) {
    for (size_t i = 0; i < count; ++i) dst[i] = static_cast<float>(src[i]) * scale[i] + offset[i];
}

void to_half(const uint8_t* __restrict src, const float* __restrict scale, const float* __restrict offset,
             uint16_t* __restrict dst, size_t count) {
    for (size_t i = 0; i < count; ++i) dst[i] = half_of(static_cast<float>(src[i]) * scale[i] + offset[i]);
}

}  // namespace

uint16_t half_of(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
    const uint32_t rest = bits & 0x7FFFFFFFu;
    constexpr uint32_t infinity = 0x7F800000u;
    if (rest > infinity) return static_cast<uint16_t>(sign | 0x7E00u | ((rest >> 13) & 0x1FFu));
    // From here on up, rounding gives infinity: half a step above the largest half, 65504.
    if (rest >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);
    if (rest < 0x38800000u) {
        // Below the normal halves the step is 2^-24: adding 0.5 leaves a float exactly the bits from there
        // up, and the addition itself rounds.
        const float shifted = std::bit_cast<float>(rest) + 0.5f;
        return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f)));
    }
    const uint32_t odd = (rest >> 13) & 1u;
    constexpr uint32_t rebias = 112u << 23;
    return static_cast<uint16_t>(sign | ((rest - rebias + 0xFFFu + odd) >> 13));
}

const Kernels portable_kernels = {
    "portable", &portable_jpeg_kernels, to_bytes, to_fine, pack,     blend_bytes,
    blend_fine, blend_linear,           reverse,  split,   to_float, to_half,
};

const std::vector<const Kernels*>& all_kernels() {
    static const std::vector<const Kernels*> all = [] {
        std::vector<const Kernels*> found = {neon_kernels(), avx2_kernels(), avx512_kernels(), &portable_kernels};
        if (prefers_avx512()) std::swap(found[1], found[2]);
        std::erase(found, nullptr);
        return found;
    }();
    return all;
}

}  // namespace batchplant
