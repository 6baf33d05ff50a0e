#include "prefixed.hpp"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>

#include "pool.hpp"

namespace batchplant {
namespace {

// Bytes at a place of a file; of what is not in memory, many at a time, for a disk gives a million bytes almost as
// soon as four. Where the ones before them were far away, few. ``direct``: the same file, past the page cache, for
// little of what is read is used; -1 where there is no such thing.
class Window {
public:
    Window(int fd, int direct) : fd_(fd), direct_(direct), bytes_(aligned_alloc(block, most + 2 * block), std::free) {}

    // What is asked for next has nothing to do with what was before.
    void begin() { last_ = std::numeric_limits<int64_t>::max(); }

    bool read(int64_t at, uint8_t* out, int64_t size, int64_t left) {
        if (at < first_ || at + size > first_ + filled_) {
            const iovec into{out, static_cast<size_t>(size)};
            if (preadv2(fd_, &into, 1, at, RWF_NOWAIT) == size) return true;
            const int64_t wanted = std::max(size, std::min(left, at - last_ > far ? few : most));
            if (!bytes_ || !(fill(direct_, at / block * block, at + wanted, at + size) ||
                             fill(fd_, at, at + wanted, at + size))) {
                return false;
            }
        }
        std::memcpy(out, static_cast<uint8_t*>(bytes_.get()) + (at - first_), static_cast<size_t>(size));
        last_ = at;
        return true;
    }

private:
    static constexpr int64_t far = 64 << 10, few = 4 << 10, most = 1 << 20, block = 4 << 10;

    // Whether what lies before ``needed`` could be read.
    bool fill(int fd, int64_t first, int64_t end, int64_t needed) {
        if (fd < 0) return false;
        const int64_t size = fd == direct_ ? (end - first + block - 1) / block * block : end - first;
        first_ = first;
        filled_ = std::max<ssize_t>(pread(fd, bytes_.get(), static_cast<size_t>(size), first), 0);
        return first + filled_ >= needed;
    }

    int fd_, direct_;
    std::unique_ptr<void, void (*)(void*)> bytes_;
    int64_t first_ = 0, filled_ = 0, last_ = 0;
};

// The sizes of the cells in one run of a file; whether they fill it.
bool sizes_in_run(Window& window, int64_t at, int64_t left, int64_t count, int64_t* sizes) {
    constexpr int64_t prefix = 4;
    window.begin();
    for (int64_t i = 0; i < count; ++i) {
        uint8_t size[prefix];
        if (left < prefix || !window.read(at, size, prefix, left)) return false;
        sizes[i] = size[0] | size[1] << 8 | size[2] << 16 | static_cast<int64_t>(size[3]) << 24;
        left -= prefix;
        if (sizes[i] > left) return false;
        left -= sizes[i];
        at += prefix + sizes[i];
    }
    return left == 0;
}

}  // namespace

std::vector<uint8_t> prefixed_sizes(int fd, const int64_t* starts, const int64_t* sizes, const int64_t* counts,
                                    const int64_t* places, size_t n, int64_t* sizes_of, size_t threads) {
    std::vector<uint8_t> good(n);
    const std::string again = "/proc/self/fd/" + std::to_string(fd);
    const int direct = open(again.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    std::vector<Window> windows;
    for (size_t i = 0; i < std::max<size_t>(1, std::min(threads, n)); ++i) windows.emplace_back(fd, direct);
    by_threads(n, threads, [&](size_t i, size_t thread) noexcept {
        good[i] = sizes_in_run(windows[thread], starts[i], sizes[i], counts[i], sizes_of + places[i]);
    });
    if (direct >= 0) close(direct);
    return good;
}

}  // namespace batchplant
