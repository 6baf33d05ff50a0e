#include "prefixed.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>

#include "platform.hpp"
#include "pool.hpp"

namespace batchplant {
namespace {

// Bytes at a place of a file. What is not in memory is read past the page cache, for little of it is used, and many
// bytes at a time, for a disk gives a million almost as soon as four; few where the ones before them were far away.
// ``direct``: the file for that; -1 where all of it is being read into the page cache, which is waited for.
class Window {
public:
    Window(int fd, int direct) : fd_(fd), direct_(direct), bytes_(aligned_alloc(block, most + 2 * block), std::free) {}

    // The next request is independent of the previous ones.
    void begin() { last_ = std::numeric_limits<int64_t>::max(); }

    bool read(int64_t at, uint8_t* out, int64_t size, int64_t left) {
        if (at < first_ || at + size > first_ + filled_) {
            if (read_if_cached(fd_, out, static_cast<size_t>(size), at) == size) return true;
            const int64_t wanted = std::max(size, std::min(left, at - last_ > far ? few : most));
            if (!fill(at, wanted, size)) return pread(fd_, out, static_cast<size_t>(size), at) == size;
        }
        std::memcpy(out, static_cast<uint8_t*>(bytes_.get()) + (at - first_), static_cast<size_t>(size));
        last_ = at;
        return true;
    }

private:
    static constexpr int64_t far = 64 << 10, few = 4 << 10, most = 1 << 20, block = 4 << 10;

    // Read past the page cache; whether what is needed could be.
    bool fill(int64_t at, int64_t wanted, int64_t needed) {
        if (direct_ < 0 || !bytes_) return false;
        first_ = at / block * block;
        const int64_t size = (at + wanted - first_ + block - 1) / block * block;
        filled_ = std::max<ssize_t>(pread(direct_, bytes_.get(), static_cast<size_t>(size), first_), 0);
        return first_ + filled_ >= at + needed;
    }

    int fd_, direct_;
    std::unique_ptr<void, void (*)(void*)> bytes_;
    int64_t first_ = 0, filled_ = 0, last_ = 0;
};

// Bytes at a place of memory.
struct Memory {
    const uint8_t* bytes;

    void begin() const {}
    bool read(int64_t at, uint8_t* out, int64_t size, int64_t /*left*/) const {
        std::memcpy(out, bytes + at, static_cast<size_t>(size));
        return true;
    }
};

// The sizes of the cells in one run; whether they fill it.
template <class From>
bool sizes_in_run(From& from, int64_t at, int64_t left, int64_t count, int64_t* sizes) {
    constexpr int64_t prefix = 4;
    from.begin();
    for (int64_t i = 0; i < count; ++i) {
        uint8_t size[prefix];
        if (left < prefix || !from.read(at, size, prefix, left)) return false;
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
                                    const int64_t* places, size_t n, int64_t* sizes_of, bool past, size_t threads) {
    std::vector<uint8_t> good(n);
    const int direct = past ? reopen_direct(fd) : -1;
    std::vector<Window> windows;
    for (size_t i = 0; i < std::max<size_t>(1, std::min(threads, n)); ++i) windows.emplace_back(fd, direct);
    by_threads(n, threads, [&](size_t i, size_t thread) noexcept {
        good[i] = sizes_in_run(windows[thread], starts[i], sizes[i], counts[i], sizes_of + places[i]);
    });
    if (direct >= 0) close(direct);
    return good;
}

std::vector<uint8_t> prefixed_sizes(const uint8_t* bytes, const int64_t* starts, const int64_t* sizes,
                                    const int64_t* counts, const int64_t* places, size_t n, int64_t* sizes_of) {
    std::vector<uint8_t> good(n);
    Memory memory{bytes};
    for (size_t i = 0; i < n; ++i) {
        good[i] = sizes_in_run(memory, starts[i], sizes[i], counts[i], sizes_of + places[i]);
    }
    return good;
}

}  // namespace batchplant
