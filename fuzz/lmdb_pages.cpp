#include "../native/records/lmdb_pages.hpp"

#include <cstdlib>
#include <numeric>

using namespace batchplant;

namespace {

// Everything that a walk found lies in the file, and no byte of a value was given out twice.
LmdbEntries walk(const uint8_t* data, size_t size, uint32_t page_size, const LmdbTree& tree) {
    LmdbEntries found = walk_lmdb(data, size, page_size, tree);
    int64_t total = 0;
    for (size_t i = 0; i < found.starts.size(); ++i) {
        if (found.key_starts[i] + found.key_sizes[i] > static_cast<int64_t>(size)) std::abort();
        if (found.starts[i] + found.sizes[i] > static_cast<int64_t>(size)) std::abort();
        total += found.sizes[i] + found.key_sizes[i];
    }
    if (total > static_cast<int64_t>(size)) std::abort();
    return found;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const LmdbMeta meta = read_lmdb_meta(data, size);
    if (meta.error.message != nullptr) return 0;
    walk(data, size, meta.page_size, meta.free_pages);
    const LmdbEntries found = walk(data, size, meta.page_size, meta.main);
    for (const int64_t number : found.databases) {
        walk(data, size, meta.page_size, read_lmdb_tree(data + found.starts[static_cast<size_t>(number)]));
    }
    return 0;
}
