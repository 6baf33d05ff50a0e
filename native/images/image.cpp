#include "image.hpp"

#include <bit>
#include <cstring>
#include <vector>

#include "coverage.hpp"

namespace batchplant {
namespace {

struct Job {
    const uint8_t* src;
    size_t height, width, channels;
    uint8_t* dst;
    size_t dst_height, dst_width;

    size_t stride() const { return width * channels; }
    size_t dst_stride() const { return dst_width * channels; }
};

// The loops over whole rows are kept in the shape that compilers turn into vector code: plain indices, no
// branches, no aliasing, rounding by arithmetic.

void first_row(const uint8_t* __restrict row, float weight, float* __restrict sums, size_t count) {
    for (size_t i = 0; i < count; ++i) sums[i] = weight * static_cast<float>(row[i]);
}

void add_row(const uint8_t* __restrict row, float weight, float* __restrict sums, size_t count) {
    for (size_t i = 0; i < count; ++i) sums[i] += weight * static_cast<float>(row[i]);
}

void first_row(const uint8_t* __restrict row, uint16_t* __restrict sums, size_t count) {
    for (size_t i = 0; i < count; ++i) sums[i] = row[i];
}

void add_row(const uint8_t* __restrict row, uint16_t* __restrict sums, size_t count) {
    for (size_t i = 0; i < count; ++i) sums[i] = static_cast<uint16_t>(sums[i] + row[i]);
}

// Values lie in [0, 255.5). Adding 1.5 * 2^23 leaves a float no bits below one, so the addition itself
// rounds (halves to even), and the low byte of the sum is the answer.
void round_row(const float* __restrict values, uint8_t* __restrict dst, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        dst[i] = static_cast<uint8_t>(std::bit_cast<uint32_t>(values[i] + 12582912.0f));
    }
}

// Three channels are summed in four lanes, which buys vector arithmetic: the fourth reads and writes one
// value past the pixel, which the next pixel overwrites. Rows are this much longer for the last one's sake.
constexpr size_t spare = 1;

// `fixed` is the channel count where it is known at compile time, else 0.
template <size_t fixed>
constexpr size_t lanes_for = fixed == 3   ? 4
                             : fixed == 0 ? 1
                                          : fixed;

template <size_t fixed>
void weighted_means(const float* sums, const Coverage<float>& coverage, size_t channels, float* means, size_t width) {
    constexpr size_t lanes = lanes_for<fixed>;
    const size_t step = fixed ? fixed : channels;
    for (size_t x = 0; x < width; ++x) {
        const float* weight = coverage.weight.data() + coverage.begin[x];
        const size_t count = coverage.begin[x + 1] - coverage.begin[x];
        const float* source = sums + coverage.first[x] * step;
        for (size_t c = 0; c < step; c += lanes) {
            float total[lanes] = {};
            for (size_t k = 0; k < count; ++k) {
                for (size_t lane = 0; lane < lanes; ++lane) total[lane] += weight[k] * source[k * step + c + lane];
            }
            std::memcpy(means + x * step + c, total, sizeof total);
        }
    }
}

template <size_t fixed>
void resize_weighted(const Job& job) {
    Coverage<float> rows, columns;
    cover(0, static_cast<double>(job.height), job.height, job.dst_height, rows);
    cover(0, static_cast<double>(job.width), job.width, job.dst_width, columns);
    std::vector<float> sums(job.stride() + spare);
    std::vector<float> means(job.dst_stride() + spare);
    for (size_t y = 0; y < job.dst_height; ++y) {
        const uint8_t* row = job.src + rows.first[y] * job.stride();
        const size_t begin = rows.begin[y];
        first_row(row, rows.weight[begin], sums.data(), job.stride());
        for (size_t k = begin + 1; k < rows.begin[y + 1]; ++k) {
            row += job.stride();
            add_row(row, rows.weight[k], sums.data(), job.stride());
        }
        weighted_means<fixed>(sums.data(), columns, job.channels, means.data(), job.dst_width);
        round_row(means.data(), job.dst + y * job.dst_stride(), job.dst_stride());
    }
}

template <size_t fixed, size_t fixed_ratio>
void whole_totals(const uint16_t* __restrict sums, size_t any_ratio, size_t channels, uint32_t* __restrict totals,
                  size_t width) {
    const size_t step = fixed ? fixed : channels;
    const size_t ratio = fixed_ratio ? fixed_ratio : any_ratio;
    for (size_t x = 0; x < width; ++x) {
        for (size_t c = 0; c < step; ++c) {
            uint32_t total = 0;
            for (size_t k = 0; k < ratio; ++k) total += sums[(x * ratio + k) * step + c];
            totals[x * step + c] = total;
        }
    }
}

void totals_to_means(const uint32_t* __restrict totals, float share, float nudge, float* __restrict means,
                     size_t count) {
    for (size_t i = 0; i < count; ++i) means[i] = static_cast<float>(static_cast<int32_t>(totals[i])) * share + nudge;
}

template <size_t fixed>
auto whole_totals_for(size_t ratio) {
    switch (ratio) {
        case 2: return whole_totals<fixed, 2>;
        case 3: return whole_totals<fixed, 3>;
        case 4: return whole_totals<fixed, 4>;
        default: return whole_totals<fixed, 0>;
    }
}

template <size_t fixed>
void resize_whole(const Job& job) {
    const size_t ratio_y = job.height / job.dst_height;
    const size_t ratio_x = job.width / job.dst_width;
    const float share = 1.0f / static_cast<float>(ratio_x * ratio_y);
    // OpenCV has a path of its own for halving, and there alone a half is rounded up, not to even.
    const bool halves_up = ratio_x == 2 && ratio_y == 2 && job.channels != 2 && job.channels <= 4;
    const float nudge = halves_up ? 0.125f : 0.0f;
    const auto add_columns = whole_totals_for<fixed>(ratio_x);
    std::vector<uint16_t> sums(job.stride());
    std::vector<uint32_t> totals(job.dst_stride());
    std::vector<float> means(job.dst_stride());
    for (size_t y = 0; y < job.dst_height; ++y) {
        const uint8_t* row = job.src + y * ratio_y * job.stride();
        first_row(row, sums.data(), job.stride());
        for (size_t k = 1; k < ratio_y; ++k) add_row(row + k * job.stride(), sums.data(), job.stride());
        add_columns(sums.data(), ratio_x, job.channels, totals.data(), job.dst_width);
        totals_to_means(totals.data(), share, nudge, means.data(), job.dst_stride());
        round_row(means.data(), job.dst + y * job.dst_stride(), job.dst_stride());
    }
}

bool is_whole_ratio(size_t source, size_t result) {
    // Up to here the sum of a column fits 16 bits, and the sum of an area is exact as a float.
    constexpr size_t largest = 256;
    return source % result == 0 && source / result <= largest;
}

template <size_t fixed>
void resize(const Job& job) {
    const bool whole = is_whole_ratio(job.height, job.dst_height) && is_whole_ratio(job.width, job.dst_width);
    if (whole) {
        resize_whole<fixed>(job);
    } else {
        resize_weighted<fixed>(job);
    }
}

}  // namespace

void resize_area(const uint8_t* src, size_t height, size_t width, size_t channels, uint8_t* dst, size_t dst_height,
                 size_t dst_width) {
    const Job job{src, height, width, channels, dst, dst_height, dst_width};
    if (height == dst_height && width == dst_width) {
        std::memcpy(dst, src, height * job.stride());
        return;
    }
    switch (channels) {
        case 1: return resize<1>(job);
        case 3: return resize<3>(job);
        case 4: return resize<4>(job);
        default: return resize<0>(job);
    }
}

}  // namespace batchplant
