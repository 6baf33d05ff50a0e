#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace batchplant {

// A run that could not be read: its number (-1: there is none), and the errno, 0 where the file ended.
struct FetchFailure {
    int64_t run = -1;
    int error = 0;
};

// Reads run i of a file, sizes[i] bytes from starts[i] on, to out + out_starts[i]. All runs are asked for
// together: through an io_uring where the kernel has one and `ring` allows it, else by `threads` threads that
// read. The caller has checked that every run lies within `out`, and that no start or size is negative.
FetchFailure fetch_runs(int fd, const int64_t* starts, const int64_t* sizes, uint8_t* out, const int64_t* out_starts,
                        size_t n, size_t threads, bool ring = true);

// The same of several files: run i is of the file fds[file[i]]. least[i] bytes of it have to come: of a file that is
// read past the page cache, whole blocks are asked for, and the last is cut short by the file's end.
FetchFailure fetch_spans(const int* fds, const int32_t* file, const int64_t* starts, const int64_t* sizes,
                         const int64_t* least, uint8_t* out, const int64_t* out_starts, size_t n, size_t threads,
                         bool ring = true);

// The way in which fetch_runs reads on this machine: "io_uring" or "threads".
const char* fetch_name();

// Fraction of a few pages, spread evenly over the runs, that are in memory already. The runs lie in the
// mapping. Linux tells the truth only to processes that own the file or may write it; others always get 1.
double resident_fraction(const uint8_t* mapping, const int64_t* starts, const int64_t* sizes, size_t n,
                         bool each = false);

// The same of rows of one width, row i beginning at start + i * stride.
double resident_fraction(const uint8_t* mapping, int64_t start, int64_t stride, int64_t width, const int64_t* row,
                         size_t n);

// The same for any process that can read the file; -1 where its file system does not tell.
double cached_fraction(int fd, const int64_t* starts, const int64_t* sizes, size_t n);

// Has the kernel begin to read the runs of a mapping, without waiting for any.
void will_need(const uint8_t* mapping, const int64_t* starts, const int64_t* sizes, size_t n);

}  // namespace batchplant
