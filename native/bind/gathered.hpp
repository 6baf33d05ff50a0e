#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <limits>
#include <new>
#include <optional>
#include <tuple>

#include "../io/bytes.hpp"
#include "../io/fetch.hpp"
#include "bind.hpp"

namespace batchplant {

using Numbers = nb::ndarray<nb::numpy, int64_t, nb::ndim<1>>;
using Data = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

// Cells one after another, and where each begins and the last ends.
struct Gathered {
    std::unique_ptr<int64_t[]> offsets;
    std::unique_ptr<uint8_t[]> data;

    Data data_array(size_t cells) {
        const auto total = static_cast<size_t>(offsets[cells]);
        uint8_t* plain = data.get();
        return Data(plain, {total}, owner_of(data));
    }
    Numbers offsets_array(size_t cells) {
        int64_t* plain = offsets.get();
        return Numbers(plain, {cells + 1}, owner_of(offsets));
    }
};

// Memory for runs of the data, filled by copy(offsets, out). Without the GIL. The runs are checked. With `look`,
// the data is a mapped file, and where not all of a few pages are in memory nothing is done, and the result empty.
template <typename Copy>
Gathered gather_unlocked(const Bytes& data, const Int64s& starts, const Int64s& sizes, bool look, Copy&& copy) {
    nb::gil_scoped_release unlocked;
    const size_t n = starts.size();
    const int64_t bad = first_bad_run(starts.data(), sizes.data(), n, data.size());
    if (bad >= 0) throw_bad_run(bad);
    if (look && resident(data.data(), starts.data(), sizes.data(), n) < 1) return {};
    Gathered found{std::make_unique_for_overwrite<int64_t[]>(n + 1), nullptr};
    int64_t end = found.offsets[0] = 0;
    for (size_t i = 0; i < n; ++i) {
        // The same run may be asked for many times.
        if (sizes.data()[i] > std::numeric_limits<int64_t>::max() - end) throw std::bad_alloc();
        found.offsets[i + 1] = end += sizes.data()[i];
    }
    found.data = std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(end));
    copy(found.offsets.get(), found.data.get());
    return found;
}

}  // namespace batchplant
