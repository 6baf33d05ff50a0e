#pragma once

// Calls that only Linux has, and what other systems do in their place. BATCHPLANT_PORTABLE=1 in the environment
// forces the latter, so that tests can try them on Linux.

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace batchplant {

// Whether the calls of Linux are there and may be used.
bool has_linux_calls();

// Reads bytes of a file if they are in the page cache; gives their number, or -1: EAGAIN if they are not, ENOTSUP
// where the system does not tell.
ssize_t read_if_cached(int fd, uint8_t* out, size_t size, int64_t at);

// Opens an open file again, for reads past the page cache; -1 where that is impossible.
int reopen_direct(int fd);

// Whether the page around an address of a mapping is in memory; true where the system does not tell.
bool is_resident(const uint8_t* mapped);

// When a file was changed, in nanoseconds.
int64_t modified_ns(const struct stat& status);

}  // namespace batchplant
