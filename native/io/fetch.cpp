#include "fetch.hpp"

#include <sys/mman.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

#include "platform.hpp"
#include "pool.hpp"

namespace batchplant {
namespace {

// One request is no larger, so that a long run keeps several requests busy.
constexpr int64_t piece_size = 1 << 20;
// Requests under way at once: enough for a fast disk to be busy.
constexpr unsigned depth = 128;
constexpr size_t sampled_pages = 8;
// No system that we run on has smaller pages.
constexpr int64_t least_page = 4096;
constexpr size_t sampled_least = 4;
constexpr size_t bytes_for_a_sample = 64 << 10;

struct Piece {
    size_t run;
    int fd;
    uint8_t* to;
    // So many bytes are asked for, and so many have to come.
    int64_t start, size, least;

    void advance(int64_t got) {
        to += got;
        start += got;
        size -= got;
        least -= got;
    }
};

// Reads all of it, whatever parts it comes in; gives 0, or the errno, or -1 where the file ends.
int read_all(Piece piece) noexcept {
    while (piece.least > 0) {
        const ssize_t got = pread(piece.fd, piece.to, static_cast<size_t>(piece.size), piece.start);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno;
        if (got == 0) return -1;
        piece.advance(got);
    }
    return 0;
}

// The failure of the lowest run, whichever thread meets it.
class Failures {
public:
    void add(size_t run, int error) noexcept {
        const std::lock_guard lock(mutex_);
        if (found_.run < 0 || static_cast<int64_t>(run) < found_.run) {
            found_ = {static_cast<int64_t>(run), error < 0 ? 0 : error};
        }
    }
    bool any() const noexcept { return found_.run >= 0; }
    FetchFailure first() const noexcept { return found_; }

private:
    std::mutex mutex_;
    FetchFailure found_;
};

struct Request {
    const int* fds;
    const int32_t* file;
    const int64_t *starts, *sizes, *least;
    uint8_t* out;
    const int64_t* out_starts;
    size_t n;

    // The next piece of the runs; false where there is none left.
    bool next(size_t& run, int64_t& done, Piece& piece) const {
        while (run < n && done >= least[run]) ++run, done = 0;
        if (run == n) return false;
        const int64_t size = std::min(sizes[run] - done, piece_size);
        piece = {run,  fds[file ? file[run] : 0],        out + out_starts[run] + done, starts[run] + done,
                 size, std::min(least[run] - done, size)};
        done += size;
        return true;
    }
};

// --- io_uring, by its system calls; the layouts are the kernel's ABI -----------------------------------------

#ifdef __linux__

constexpr long setup_call = 425, enter_call = 426;
constexpr uint8_t read_operation = 22;
constexpr uint32_t single_mapping = 1u << 0, has_read_operation = 1u << 3;
constexpr unsigned get_events = 1u << 0;
constexpr off_t entries_offset = 0x10000000;

struct Submission {
    uint8_t operation, flags;
    uint16_t priority;
    int32_t fd;
    uint64_t offset, address;
    uint32_t size, operation_flags;
    uint64_t user_data, unused[3];
};
static_assert(sizeof(Submission) == 64);

struct Completion {
    uint64_t user_data;
    int32_t result;
    uint32_t flags;
};
static_assert(sizeof(Completion) == 16);

struct Parameters {
    uint32_t sq_entries, cq_entries, flags, sq_cpu, sq_idle, features, wq_fd, reserved[3];
    struct {
        uint32_t head, tail, mask, entries, flags, dropped, array, reserved;
        uint64_t address;
    } sq;
    struct {
        uint32_t head, tail, mask, entries, overflow, completions, flags, reserved;
        uint64_t address;
    } cq;
};
static_assert(sizeof(Parameters) == 120);

class Ring {
public:
    explicit Ring(unsigned entries) {
        if (!has_linux_calls()) return;
        Parameters made{};
        fd_ = static_cast<int>(syscall(setup_call, entries, &made));
        if (fd_ < 0) return;
        if (~made.features & (single_mapping | has_read_operation)) return;
        shared_size_ = std::max(made.sq.array + made.sq_entries * sizeof(uint32_t),
                                made.cq.completions + made.cq_entries * sizeof(Completion));
        submissions_size_ = made.sq_entries * sizeof(Submission);
        constexpr int access = PROT_READ | PROT_WRITE, kind = MAP_SHARED | MAP_POPULATE;
        shared_ = mmap(nullptr, shared_size_, access, kind, fd_, 0);
        submissions_ = mmap(nullptr, submissions_size_, access, kind, fd_, entries_offset);
        if (shared_ == MAP_FAILED || submissions_ == MAP_FAILED) return;
        sq_tail_ = at<uint32_t>(made.sq.tail);
        sq_mask_ = *at<uint32_t>(made.sq.mask);
        sq_array_ = at<uint32_t>(made.sq.array);
        cq_head_ = at<uint32_t>(made.cq.head);
        cq_tail_ = at<uint32_t>(made.cq.tail);
        cq_mask_ = *at<uint32_t>(made.cq.mask);
        completions_ = at<Completion>(made.cq.completions);
        usable_ = true;
    }

    ~Ring() {
        if (submissions_ != MAP_FAILED) munmap(submissions_, submissions_size_);
        if (shared_ != MAP_FAILED) munmap(shared_, shared_size_);
        if (fd_ >= 0) close(fd_);
    }

    Ring(const Ring&) = delete;
    Ring& operator=(const Ring&) = delete;

    bool usable() const { return usable_; }

    // Queues a read. There is room: no caller has more than `entries` in flight.
    void push(int fd, uint8_t* to, uint32_t size, int64_t start, uint64_t user_data) {
        const uint32_t tail = *sq_tail_, slot = tail & sq_mask_;
        Submission& one = static_cast<Submission*>(submissions_)[slot];
        one = {};
        one.operation = read_operation;
        one.fd = fd;
        one.offset = static_cast<uint64_t>(start);
        one.address = reinterpret_cast<uint64_t>(to);
        one.size = size;
        one.user_data = user_data;
        sq_array_[slot] = slot;
        __atomic_store_n(sq_tail_, tail + 1, __ATOMIC_RELEASE);
    }

    // Hands over what is queued and waits for completions; how many were taken, or the negative errno.
    int enter(unsigned submit, unsigned wait) {
        const long taken = syscall(enter_call, fd_, submit, wait, get_events, nullptr, 0);
        return taken < 0 ? -errno : static_cast<int>(taken);
    }

    template <typename Take>
    void reap(Take&& take) {
        uint32_t head = *cq_head_;
        for (const uint32_t tail = __atomic_load_n(cq_tail_, __ATOMIC_ACQUIRE); head != tail; ++head) {
            const Completion one = completions_[head & cq_mask_];
            __atomic_store_n(cq_head_, head + 1, __ATOMIC_RELEASE);
            take(one.user_data, one.result);
        }
    }

private:
    template <typename T>
    T* at(uint32_t offset) {
        return reinterpret_cast<T*>(static_cast<uint8_t*>(shared_) + offset);
    }

    int fd_ = -1;
    bool usable_ = false;
    void* shared_ = MAP_FAILED;
    void* submissions_ = MAP_FAILED;
    size_t shared_size_ = 0, submissions_size_ = 0;
    uint32_t *sq_tail_ = nullptr, *sq_array_ = nullptr, *cq_head_ = nullptr, *cq_tail_ = nullptr;
    uint32_t sq_mask_ = 0, cq_mask_ = 0;
    Completion* completions_ = nullptr;
};

// False where the kernel takes no reads this way; then nothing of it is under way any more.
bool fetch_by_ring(const Request& request, FetchFailure& failure) {
    Ring ring(depth);
    if (!ring.usable()) return false;
    Piece pieces[depth];
    unsigned free[depth], free_count = depth, queued = 0;
    for (unsigned i = 0; i < depth; ++i) free[i] = i;
    Failures failures;
    size_t run = 0;
    int64_t done = 0;
    const auto push = [&](unsigned slot) {
        const Piece& piece = pieces[slot];
        ring.push(piece.fd, piece.to, static_cast<uint32_t>(piece.size), piece.start, slot);
        ++queued;
    };
    const auto take = [&](uint64_t slot, int32_t result) {
        Piece& piece = pieces[slot];
        if (result > 0 && result < piece.least && !failures.any()) {
            piece.advance(result);
            return push(static_cast<unsigned>(slot));
        }
        if (result == 0) failures.add(piece.run, 0);
        // A plain read does what the ring cannot do, or not now; it also reports the real errors.
        if (result < 0) {
            if (const int error = read_all(piece)) failures.add(piece.run, error);
        }
        free[free_count++] = static_cast<unsigned>(slot);
    };
    for (;;) {
        while (free_count > 0 && !failures.any() && request.next(run, done, pieces[free[free_count - 1]])) {
            push(free[--free_count]);
        }
        if (free_count == depth) break;
        const int taken = ring.enter(queued, 1);
        if (taken >= 0) queued -= static_cast<unsigned>(taken);
        // Not one read was taken ever: another way has to be found. Once some are under way they are waited
        // for, whatever happens, because the kernel writes into the caller's memory.
        if (taken < 0 && taken != -EINTR) {
            if (queued + free_count == depth) return false;
            ring.enter(0, 1);
        }
        ring.reap(take);
    }
    failure = failures.first();
    return true;
}

#else

bool fetch_by_ring(const Request&, FetchFailure&) { return false; }

#endif

FetchFailure fetch_by_threads(const Request& request, size_t threads) {
    std::vector<Piece> pieces;
    size_t run = 0;
    int64_t done = 0;
    for (Piece piece; request.next(run, done, piece);) pieces.push_back(piece);
    Failures failures;
    by_threads(pieces.size(), threads, [&](size_t i, size_t) noexcept {
        const Piece& piece = pieces[i];
        if (const int error = read_all(piece)) failures.add(piece.run, error);
    });
    return failures.first();
}

// Number of n runs to look at. Looking costs about a microsecond: a batch of small runs is not worth many.
size_t samples_of(size_t bytes, size_t n) {
    return std::min(n, std::clamp(bytes / bytes_for_a_sample, sampled_least, sampled_pages));
}

// Calls visit(position) with a byte in each of a few pages of the runs, spread evenly; ``each``: of every run.
template <typename Visit>
void sample(const int64_t* starts, const int64_t* sizes, size_t n, Visit&& visit, bool each = false) {
    size_t bytes = 0;
    for (size_t i = 0; i < n; ++i) bytes += static_cast<size_t>(std::max<int64_t>(sizes[i], 0));
    const size_t count = each ? n : samples_of(bytes, n);
    int64_t last_page = -1;
    for (size_t k = 0; k < count; ++k) {
        const size_t i = k * n / count;
        if (sizes[i] <= 0) continue;
        // Not the last byte: a read of the bytes behind a run brings its last page into memory.
        const int64_t position = starts[i] + (k % 2 ? sizes[i] / 2 : 0);
        // Neighbouring small runs share pages.
        if (position / least_page != last_page) visit(position);
        last_page = position / least_page;
    }
}

}  // namespace

FetchFailure fetch_runs(int fd, const int64_t* starts, const int64_t* sizes, uint8_t* out, const int64_t* out_starts,
                        size_t n, size_t threads, bool ring) {
    return fetch_spans(&fd, nullptr, starts, sizes, sizes, out, out_starts, n, threads, ring);
}

FetchFailure fetch_spans(const int* fds, const int32_t* file, const int64_t* starts, const int64_t* sizes,
                         const int64_t* least, uint8_t* out, const int64_t* out_starts, size_t n, size_t threads,
                         bool ring) {
    const Request request{fds, file, starts, sizes, least, out, out_starts, n};
    FetchFailure failure;
    if (ring && fetch_by_ring(request, failure)) return failure;
    return fetch_by_threads(request, threads);
}

const char* fetch_name() {
#ifdef __linux__
    static const bool ring = Ring(1).usable();
    if (ring) return "io_uring";
#endif
    return "threads";
}

double resident_fraction(const uint8_t* mapping, const int64_t* starts, const int64_t* sizes, size_t n, bool each) {
    size_t seen = 0, found = 0;
    const auto look = [&](int64_t position) {
        ++seen;
        if (is_resident(mapping + position)) ++found;
    };
    sample(starts, sizes, n, look, each);
    return seen ? static_cast<double>(found) / static_cast<double>(seen) : 1;
}

double resident_fraction(const uint8_t* mapping, int64_t start, int64_t stride, int64_t width, const int64_t* row,
                         size_t n) {
    const size_t count = width > 0 ? samples_of(static_cast<size_t>(width) * n, n) : 0;
    size_t found = 0;
    for (size_t k = 0; k < count; ++k) {
        const int64_t first = start + row[k * n / count] * stride;
        if (is_resident(mapping + (k % 2 ? first + width - 1 : first))) ++found;
    }
    return count ? static_cast<double>(found) / static_cast<double>(count) : 1;
}

double cached_fraction(int fd, const int64_t* starts, const int64_t* sizes, size_t n) {
    size_t seen = 0, found = 0;
    bool told = true;
    sample(starts, sizes, n, [&](int64_t position) {
        uint8_t byte;
        ++seen;
        const ssize_t got = told ? read_if_cached(fd, &byte, 1, position) : -1;
        if (got > 0) ++found;
        if (got < 0 && errno != EAGAIN) told = false;
    });
    if (!told) return -1;
    return seen ? static_cast<double>(found) / static_cast<double>(seen) : 1;
}

void will_need(const uint8_t* mapping, const int64_t* starts, const int64_t* sizes, size_t n) {
    static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    // The kernel takes no more than a disk's read-ahead of one call, and forgets the rest: 128 KiB or more.
    constexpr uintptr_t most = 128 << 10;
    for (size_t i = 0; i < n; ++i) {
        if (sizes[i] <= 0) continue;
        const auto begin = reinterpret_cast<uintptr_t>(mapping + starts[i]);
        const uintptr_t end = begin + static_cast<uintptr_t>(sizes[i]);
        for (uintptr_t at = begin & ~(page - 1); at < end; at += most) {
            madvise(reinterpret_cast<void*>(at), std::min(most, end - at), MADV_WILLNEED);
        }
    }
}

}  // namespace batchplant
