#pragma once

#include <limits>
#include <new>

#include "../io/fetch.hpp"
#include "../io/memory.hpp"
#include "bind.hpp"

namespace batchplant {

// Cells one after another, and where each begins and the last ends.
struct Gathered {
    std::unique_ptr<int64_t[]> offsets;
    std::unique_ptr<uint8_t[]> data;

    Array<uint8_t> data_array(size_t cells) { return array_of(data, static_cast<size_t>(offsets[cells])); }
    Array<int64_t> offsets_array(size_t cells) { return array_of(offsets, cells + 1); }
};

// Memory for runs of the data, filled by copy(offsets, out). Without the GIL. The runs are checked. With
// `if_resident`, the data is a mapped file; where not all of a few of its pages are in memory, the result is empty.
template <typename Copy>
Gathered gather_unlocked(const Bytes& data, const Int64s& starts, const Int64s& sizes, bool if_resident, Copy&& copy) {
    nb::gil_scoped_release unlocked;
    const size_t n = starts.size();
    const int64_t bad = first_bad_run(starts.data(), sizes.data(), n, data.size());
    if (bad >= 0) throw_bad_run(bad);
    if (if_resident && resident_fraction(data.data(), starts.data(), sizes.data(), n) < 1) return {};
    Gathered gathered{std::make_unique_for_overwrite<int64_t[]>(n + 1), nullptr};
    int64_t end = gathered.offsets[0] = 0;
    for (size_t i = 0; i < n; ++i) {
        // The same run may be asked for many times.
        if (sizes.data()[i] > std::numeric_limits<int64_t>::max() - end) throw std::bad_alloc();
        gathered.offsets[i + 1] = end += sizes.data()[i];
    }
    gathered.data = fresh_memory(static_cast<size_t>(end));
    copy(gathered.offsets.get(), gathered.data.get());
    return gathered;
}

}  // namespace batchplant
