#include "platform.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

namespace batchplant {

bool has_linux_calls() {
#ifdef __linux__
    static const char* portable = std::getenv("BATCHPLANT_PORTABLE");
    static const bool allowed = !portable || !*portable || std::string(portable) == "0";
    return allowed;
#else
    return false;
#endif
}

ssize_t read_if_cached([[maybe_unused]] int fd, [[maybe_unused]] uint8_t* out, [[maybe_unused]] size_t size,
                       [[maybe_unused]] int64_t at) {
#ifdef __linux__
    if (has_linux_calls()) {
        const iovec into{out, size};
        return preadv2(fd, &into, 1, at, RWF_NOWAIT);
    }
#endif
    errno = ENOTSUP;
    return -1;
}

int reopen_direct([[maybe_unused]] int fd) {
#ifdef __linux__
    if (has_linux_calls()) {
        const std::string path = "/proc/self/fd/" + std::to_string(fd);
        return open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    }
#endif
    return -1;
}

bool is_resident([[maybe_unused]] const uint8_t* mapped) {
#ifdef __linux__
    if (has_linux_calls()) {
        static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
        const uintptr_t address = reinterpret_cast<uintptr_t>(mapped) & ~(page - 1);
        unsigned char state = 1;
        return mincore(reinterpret_cast<void*>(address), page, &state) != 0 || (state & 1);
    }
#endif
    return true;
}

int64_t modified_ns(const struct stat& status) {
#ifdef __APPLE__
    const timespec& time = status.st_mtimespec;
#else
    const timespec& time = status.st_mtim;
#endif
    return time.tv_sec * INT64_C(1'000'000'000) + time.tv_nsec;
}

}  // namespace batchplant
