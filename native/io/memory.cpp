#include "memory.hpp"

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace batchplant {

std::unique_ptr<uint8_t[]> fresh_memory(size_t size) {
    auto memory = std::make_unique_for_overwrite<uint8_t[]>(size);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    // Smaller ones are used again by the allocator, and then have their pages.
    constexpr size_t large = size_t{4} << 20;
    if (size >= large) {
        const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        const auto begin = reinterpret_cast<uintptr_t>(memory.get());
        const uintptr_t first = (begin + page - 1) / page * page, end = (begin + size) / page * page;
        // A wish; whether it is granted makes no difference to what is stored there.
        madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
    }
#endif
    return memory;
}

}  // namespace batchplant
