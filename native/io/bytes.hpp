#pragma once

#include <cstddef>
#include <cstdint>

namespace batchplant {

// True if [start, start + size) lies inside a buffer of `total` bytes. The sum is never formed, so a
// start and size near the limits of their type cannot wrap around and look valid.
inline bool run_fits(int64_t start, int64_t size, size_t total) {
    if (start < 0 || size < 0) return false;
    const auto begin = static_cast<uint64_t>(start);
    return begin <= total && static_cast<uint64_t>(size) <= total - begin;
}

// Has the processor load the first bytes of a run that is wanted soon, and find out where its next pages are: runs at
// random places are not foreseen. To the second cache, for the first has few places to wait in.
// Always inline: gcc takes a function that only prefetches for one without effect, and drops its calls.
[[gnu::always_inline]] inline void prefetch_run(const uint8_t* data, int64_t size) {
    constexpr int64_t line = 64, first = 256, page = 4096, most = 8 * page;
    for (int64_t at = 0; at < size && at < first; at += line) __builtin_prefetch(data + at, 0, 2);
    for (int64_t at = page; at < size && at <= most; at += page) __builtin_prefetch(data + at, 0, 2);
    if (size > page) __builtin_prefetch(data + size - 1, 0, 2);
}

// The index of the first run that leaves the buffer, or -1.
int64_t first_bad_run(const int64_t* starts, const int64_t* sizes, size_t n, size_t total);

// The same for what lies between two places, neither of them negative.
int64_t first_bad_run(const int64_t* starts, const int64_t* sizes, size_t n, int64_t first, int64_t end);

// Copies run i from src + src_starts[i] to dst + dst_starts[i]. Every run is checked on both sides
// before the first byte moves; returns the index of the first bad run (nothing copied) or -1.
// src and dst may be the same memory.
int64_t copy_runs(const uint8_t* src, size_t src_size, const int64_t* src_starts, const int64_t* sizes, uint8_t* dst,
                  size_t dst_size, const int64_t* dst_starts, size_t n);

}  // namespace batchplant
