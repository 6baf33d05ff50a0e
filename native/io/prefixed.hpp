#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace batchplant {

// The sizes of cells that each have their size before them, in four bytes, and together fill runs of a file: counts[i]
// cells in run i, to sizes_of + places[i]. Tells of each run whether it is so. Several runs are read at a time.
std::vector<uint8_t> prefixed_sizes(int fd, const int64_t* starts, const int64_t* sizes, const int64_t* counts,
                                    const int64_t* places, size_t n, int64_t* sizes_of, size_t threads);

}  // namespace batchplant
