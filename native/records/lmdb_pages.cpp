#include "lmdb_pages.hpp"

#include <algorithm>
#include <cstring>

namespace batchplant {
namespace {

constexpr uint32_t magic = 0xBEEFC0DE;
constexpr size_t page_header = 16;
constexpr size_t node_header = 8;
constexpr size_t meta_size = 136;
constexpr size_t deepest = 32;

enum PageFlag : uint16_t { branch = 0x01, leaf = 0x02, overflow = 0x04, meta = 0x08, kinds = 0x6f };
enum NodeFlag : uint16_t { big_data = 0x01, sub_data = 0x02, dup_data = 0x04 };

template <typename T>
T read(const uint8_t* at) {
    T value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) value = static_cast<T>(value | static_cast<T>(at[i]) << (8 * i));
    return value;
}

const char* check_meta(const uint8_t* page) {
    if ((read<uint16_t>(page + 10) & meta) == 0 || read<uint32_t>(page + page_header) != magic) {
        return "this is not a meta page of LMDB";
    }
    if (read<uint32_t>(page + page_header + 4) != 1) return "this version of LMDB's format is not known, only 1 is";
    return nullptr;
}

LmdbMeta parse_meta(const uint8_t* page) {
    const uint8_t* at = page + page_header + 24;
    LmdbMeta meta;
    meta.page_size = read<uint32_t>(at);
    meta.free_pages = read_lmdb_tree(at);
    meta.main = read_lmdb_tree(at + lmdb_tree_size);
    meta.last_page = read<uint64_t>(at + 2 * lmdb_tree_size);
    meta.transaction = read<uint64_t>(at + 2 * lmdb_tree_size + 8);
    return meta;
}

LmdbMeta bad_meta(const char* message, size_t offset) {
    LmdbMeta meta;
    meta.error = {message, offset};
    return meta;
}

bool is_page_size(uint64_t size) { return size >= 256 && size <= 65536 && (size & (size - 1)) == 0; }

struct Node {
    size_t at;  // in the file
    uint16_t flags;
    uint16_t key_size;
    uint32_t value_size;
    size_t key() const { return at + node_header; }
    size_t value() const { return key() + key_size; }
};

class Walker {
public:
    Walker(const uint8_t* data, size_t size, uint32_t page_size)
        : data_(data), page_size_(page_size), pages_(size / page_size), used_((pages_ + 63) / 64) {}

    LmdbEntries walk(const LmdbTree& tree) {
        if (tree.root == lmdb_no_page) {
            if (tree.entries != 0) fail("an empty tree says that it has entries", 0);
            return std::move(found_);
        }
        // No tree may use the two meta pages.
        for (uint64_t page = 0; page < std::min<uint64_t>(pages_, 2); ++page) take(page);
        if (tree.depth == 0 || tree.depth > deepest) {
            fail("the depth of the tree is damaged", 0);
            return std::move(found_);
        }
        depth_ = tree.depth;
        std::vector<Level> stack;
        stack.reserve(depth_);
        if (enter(tree.root, stack)) descend(stack);
        if (found_.error.message == nullptr && found_.starts.size() != tree.entries) {
            fail("the tree has another number of entries than it says", 0);
        }
        return std::move(found_);
    }

private:
    struct Level {
        size_t at;
        size_t count;
        size_t next = 0;
    };

    bool fail(const char* message, size_t offset) {
        found_.error = {message, offset};
        return false;
    }

    // Every page belongs to one place only: no cycles, and no file that holds more than its size.
    bool take(uint64_t page) {
        const uint64_t bit = uint64_t{1} << (page % 64);
        if (page >= pages_ || (used_[page / 64] & bit) != 0) return false;
        used_[page / 64] |= bit;
        return true;
    }

    bool enter(uint64_t page, std::vector<Level>& stack) {
        if (page >= pages_) return fail("a page lies behind the end of the file", 0);
        const size_t at = page * page_size_;
        if (!take(page)) return fail("a page is used twice", at);
        const uint8_t* head = data_ + at;
        const uint16_t kind = read<uint16_t>(head + 10) & kinds;
        if (read<uint64_t>(head) != page) return fail("a page has the wrong number", at);
        if (kind != (stack.size() + 1 == depth_ ? leaf : branch)) return fail("a page is of the wrong kind", at);
        const size_t lower = read<uint16_t>(head + 12), upper = read<uint16_t>(head + 14);
        if (lower < page_header || lower % 2 != 0 || upper < lower || upper > page_size_) {
            return fail("the bounds of a page are damaged", at);
        }
        stack.push_back({at, (lower - page_header) / 2});
        return stack.size() == depth_ ? read_leaf(stack) : true;
    }

    bool duplicated(size_t at) {
        found_.duplicates = true;
        return fail("a key has several values (MDB_DUPSORT)", at);
    }

    bool descend(std::vector<Level>& stack) {
        while (!stack.empty()) {
            Level& level = stack.back();
            if (level.next == level.count) {
                stack.pop_back();
                continue;
            }
            Node node;
            if (!read_node(level.at, level.next++, node)) return false;
            // In a branch the size and the flags are the number of the page below.
            const uint64_t below = node.value_size | static_cast<uint64_t>(node.flags) << 32;
            if (node.key() + node.key_size > level.at + page_size_) return fail("a key leaves its page", node.at);
            if (!enter(below, stack)) return false;
        }
        return true;
    }

    bool read_node(size_t page, size_t number, Node& node) {
        const size_t offset = read<uint16_t>(data_ + page + page_header + 2 * number);
        const size_t upper = read<uint16_t>(data_ + page + 14);
        if (offset < upper || offset + node_header > page_size_) return fail("a node leaves its page", page);
        const uint8_t* at = data_ + page + offset;
        node = {page + offset, read<uint16_t>(at + 4), read<uint16_t>(at + 6), read<uint32_t>(at)};
        return true;
    }

    bool read_leaf(std::vector<Level>& stack) {
        const Level level = stack.back();
        stack.pop_back();
        const size_t end = level.at + page_size_;
        // Nodes that shared their bytes would make a small file hold many large values.
        size_t room = page_size_ - page_header - 2 * level.count;
        for (size_t i = 0; i < level.count; ++i) {
            Node node;
            if (!read_node(level.at, i, node)) return false;
            const bool big = (node.flags & big_data) != 0;
            const size_t inside = big ? sizeof(uint64_t) : node.value_size;
            if (node.value() > end || inside > end - node.value()) return fail("a value leaves its page", node.at);
            const size_t taken = node_header + node.key_size + inside;
            if (taken > room) return fail("nodes of a page overlap", level.at);
            room -= taken;
            if ((node.flags & dup_data) != 0) return duplicated(node.at);
            size_t start = node.value();
            if (big && !find_big(node, start)) return false;
            if ((node.flags & sub_data) != 0) {
                if (node.value_size != lmdb_tree_size) return fail("a named database is damaged", node.at);
                found_.databases.push_back(static_cast<int64_t>(found_.starts.size()));
            }
            found_.key_starts.push_back(static_cast<int64_t>(node.key()));
            found_.key_sizes.push_back(node.key_size);
            found_.starts.push_back(static_cast<int64_t>(start));
            found_.sizes.push_back(node.value_size);
        }
        return true;
    }

    // A value that is too large for its leaf has pages of its own.
    bool find_big(const Node& node, size_t& start) {
        const uint64_t page = read<uint64_t>(data_ + node.value());
        if (page >= pages_) return fail("a large value lies behind the end of the file", node.at);
        const size_t at = page * page_size_;
        const uint64_t count = read<uint32_t>(data_ + at + 12);
        if (read<uint64_t>(data_ + at) != page || (read<uint16_t>(data_ + at + 10) & kinds) != overflow) {
            return fail("a page of a large value is damaged", at);
        }
        if (count == 0 || count > pages_ - page || count * page_size_ < page_header + uint64_t{node.value_size}) {
            return fail("a large value is longer than its pages", at);
        }
        for (uint64_t i = 0; i < count; ++i) {
            if (!take(page + i)) return fail("a page is used twice", at);
        }
        start = at + page_header;
        return true;
    }

    const uint8_t* data_;
    const size_t page_size_;
    const uint64_t pages_;
    std::vector<uint64_t> used_;
    size_t depth_ = 0;
    LmdbEntries found_;
};

}  // namespace

LmdbTree read_lmdb_tree(const uint8_t* record) {
    return {read<uint64_t>(record + 40), read<uint64_t>(record + 32), read<uint16_t>(record + 6),
            read<uint16_t>(record + 4)};
}

LmdbMeta read_lmdb_meta(const uint8_t* data, size_t size) {
    if (size < page_header + meta_size) return bad_meta("the file ends within its first page", size);
    if (const char* wrong = check_meta(data)) return bad_meta(wrong, 0);
    const LmdbMeta one = parse_meta(data);
    if (!is_page_size(one.page_size)) return bad_meta("the page size is damaged", page_header + 24);
    const size_t second = one.page_size;
    if (size < second + page_header + meta_size) return bad_meta("the file ends within its first pages", size);
    if (const char* wrong = check_meta(data + second)) return bad_meta(wrong, second);
    const LmdbMeta two = parse_meta(data + second);
    if (two.page_size != one.page_size) return bad_meta("the two meta pages differ in their page size", second);
    return two.transaction > one.transaction ? two : one;
}

LmdbEntries walk_lmdb(const uint8_t* data, size_t size, uint32_t page_size, const LmdbTree& tree) {
    if (!is_page_size(page_size)) {
        LmdbEntries entries;
        entries.error = {"the page size is damaged", 0};
        return entries;
    }
    return Walker(data, size, page_size).walk(tree);
}

}  // namespace batchplant
