#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace batchplant {

// The source pixels under one result pixel and how much each counts. For result i they are
// first[i] + k with weight[begin[i] + k], for k from 0 to begin[i + 1] - begin[i].
template <typename Weight>
struct Coverage {
    std::vector<size_t> first;
    std::vector<size_t> begin;
    std::vector<Weight> weight;

    void clear() {
        first.clear();
        begin.clear();
        weight.clear();
    }
    size_t count(size_t i) const { return begin[i + 1] - begin[i]; }
};

// How `length` source pixels from `start` on, both perhaps fractions, lie under `result` pixels of at least
// that size each. `source` is the number of source pixels.
template <typename Weight>
void cover(double start, double length, size_t source, size_t result, Coverage<Weight>& coverage) {
    // Thinner slivers are left out, as OpenCV does: they come from rounding, and would cost a row each.
    constexpr double sliver = 1e-3;
    // Inverting the inverse looks odd, but gives the very bits that OpenCV computes with.
    const double scale = 1.0 / (static_cast<double>(result) / length);
    const double end = start + length;
    coverage.clear();
    coverage.first.reserve(result);
    coverage.begin.reserve(result + 1);
    coverage.weight.reserve(static_cast<size_t>(length) + 3 * result);
    for (size_t i = 0; i < result; ++i) {
        const double from = start + static_cast<double>(i) * scale;
        const double to = std::min(from + scale, end);
        auto pixel = std::min(static_cast<size_t>(from), source - 1);
        if (static_cast<double>(pixel + 1) - from <= sliver && pixel + 1 < source) ++pixel;
        coverage.first.push_back(pixel);
        coverage.begin.push_back(coverage.weight.size());
        do {
            const double left = std::max(static_cast<double>(pixel), from);
            const double right = std::min(static_cast<double>(pixel + 1), to);
            coverage.weight.push_back(static_cast<Weight>((right - left) / (to - from)));
            ++pixel;
        } while (pixel < source && to - static_cast<double>(pixel) > sliver);
    }
    coverage.begin.push_back(coverage.weight.size());
}

}  // namespace batchplant
