#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace batchplant {

// The sizes of cells that each have their size before them, in four bytes, and together fill runs of a file: counts[i]
// cells in run i, to sizes_of + places[i]. Tells of each run whether it is so. Several runs are read at a time,
// ``past`` the page cache where they are not in it: not where all of them are being read into it.
std::vector<uint8_t> prefixed_sizes(int fd, const int64_t* starts, const int64_t* sizes, const int64_t* counts,
                                    const int64_t* places, size_t n, int64_t* sizes_of, bool past, size_t threads);

// The same of runs of memory.
std::vector<uint8_t> prefixed_sizes(const uint8_t* bytes, const int64_t* starts, const int64_t* sizes,
                                    const int64_t* counts, const int64_t* places, size_t n, int64_t* sizes_of);

}  // namespace batchplant
