#include "bytes.hpp"

#include <cstring>

namespace batchplant {

int64_t first_bad_run(const int64_t* starts, const int64_t* sizes, size_t n, int64_t first, int64_t end) {
    for (size_t i = 0; i < n; ++i) {
        if (starts[i] < first || starts[i] > end || sizes[i] < 0 || sizes[i] > end - starts[i]) {
            return static_cast<int64_t>(i);
        }
    }
    return -1;
}

int64_t first_bad_run(const int64_t* starts, const int64_t* sizes, size_t n, size_t total) {
    for (size_t i = 0; i < n; ++i) {
        if (!run_fits(starts[i], sizes[i], total)) return static_cast<int64_t>(i);
    }
    return -1;
}

int64_t copy_runs(const uint8_t* src, size_t src_size, const int64_t* src_starts, const int64_t* sizes, uint8_t* dst,
                  size_t dst_size, const int64_t* dst_starts, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        if (!run_fits(src_starts[i], sizes[i], src_size) || !run_fits(dst_starts[i], sizes[i], dst_size)) {
            return static_cast<int64_t>(i);
        }
    }
    for (size_t i = 0, end; i < n; i = end) {
        int64_t size = sizes[i];
        // Runs that lie one behind the other on both sides are one.
        for (end = i + 1; end < n; ++end) {
            if (src_starts[end] != src_starts[i] + size || dst_starts[end] != dst_starts[i] + size) break;
            size += sizes[end];
        }
        if (end < n) prefetch_run(src + src_starts[end], sizes[end]);
        // An empty run may come with a null buffer, which memmove must not be given.
        if (size > 0) std::memmove(dst + dst_starts[i], src + src_starts[i], static_cast<size_t>(size));
    }
    return -1;
}

}  // namespace batchplant
