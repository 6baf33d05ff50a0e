#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// The pages of an LMDB environment (data.mdb), read without liblmdb: that library trusts what it maps, and a
// damaged page takes the whole process down. Here every number is checked before it is followed.

namespace batchplant {

constexpr uint64_t lmdb_no_page = UINT64_MAX;

struct LmdbTree {
    uint64_t root = lmdb_no_page;
    uint64_t entries = 0;
    uint16_t depth = 0;
    uint16_t flags = 0;
};

struct LmdbError {
    const char* message = nullptr;
    size_t offset = 0;
};

struct LmdbMeta {
    uint32_t page_size = 0;
    uint64_t last_page = 0;
    uint64_t transaction = 0;
    LmdbTree free_pages;
    LmdbTree main;
    LmdbError error;
};

// The newer of the two meta pages.
LmdbMeta read_lmdb_meta(const uint8_t* data, size_t size);

// A named database is a record of this size in the main one.
constexpr size_t lmdb_tree_size = 48;
LmdbTree read_lmdb_tree(const uint8_t* record);

struct LmdbEntries {
    std::vector<int64_t> key_starts;
    std::vector<uint16_t> key_sizes;
    std::vector<int64_t> starts;
    std::vector<int64_t> sizes;
    std::vector<int64_t> databases;  // numbers of the entries that are named databases
    LmdbError error;
    bool duplicates = false;  // a key has several values: the error is no damage
};

// All entries of a tree, in the order of their keys. No page is used twice, so the work is bounded by the file.
LmdbEntries walk_lmdb(const uint8_t* data, size_t size, uint32_t page_size, const LmdbTree& tree);

}  // namespace batchplant
