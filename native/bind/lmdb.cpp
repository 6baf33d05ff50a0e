

#include "../records/datum.hpp"
#include "../records/lmdb_pages.hpp"
#include "bind.hpp"

namespace batchplant {
namespace {

using Floats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Failure = std::optional<std::tuple<std::string, size_t>>;
using Tree = std::tuple<uint64_t, uint64_t, uint16_t, uint16_t>;

Failure found_wrong(const LmdbError& error) {
    if (error.message == nullptr) return {};
    return std::make_tuple(std::string(error.message), error.offset);
}

Tree tuple_of(const LmdbTree& tree) { return {tree.root, tree.entries, tree.depth, tree.flags}; }

std::tuple<uint32_t, uint64_t, uint64_t, Tree, Tree, Failure> meta(const Bytes& data) {
    const LmdbMeta meta = read_lmdb_meta(data.data(), data.size());
    return {meta.page_size,      meta.last_page,         meta.transaction, tuple_of(meta.free_pages),
            tuple_of(meta.main), found_wrong(meta.error)};
}

Tree tree_at(const Bytes& record) {
    if (record.size() != lmdb_tree_size) throw std::invalid_argument("a database's record has 48 bytes");
    return tuple_of(read_lmdb_tree(record.data()));
}

std::tuple<Array<int64_t>, Array<uint16_t>, Array<int64_t>, Array<int64_t>, Array<int64_t>, Failure, bool> walk(
    const Bytes& data, uint32_t page_size, const Tree& tree) {
    LmdbEntries result;
    {
        nb::gil_scoped_release unlocked;
        const auto [root, entries, depth, flags] = tree;
        result = walk_lmdb(data.data(), data.size(), page_size, {root, entries, depth, flags});
    }
    return {copy_of(result.key_starts), copy_of(result.key_sizes), copy_of(result.starts), copy_of(result.sizes),
            copy_of(result.databases),  found_wrong(result.error), result.duplicates};
}

std::tuple<Table<int64_t>, std::optional<std::tuple<size_t, std::string>>> datums(const Bytes& data,
                                                                                  const Int64s& starts,
                                                                                  const Int64s& sizes) {
    const size_t n = starts.size();
    auto rows = std::make_unique<int64_t[]>(n * datum_numbers);
    std::optional<std::tuple<size_t, std::string>> failure;
    {
        nb::gil_scoped_release unlocked;
        check_runs(starts, sizes, data.size());
        for (size_t i = 0; i < n; ++i) {
            Datum datum;
            const int64_t start = starts.data()[i];
            const char* wrong = parse_datum(data.data() + start, static_cast<size_t>(sizes.data()[i]), datum);
            if (wrong != nullptr) {
                failure = std::make_tuple(i, std::string(wrong));
                break;
            }
            const int64_t row[datum_numbers] = {datum.channels,   datum.height,
                                                datum.width,      datum.label,
                                                datum.encoded,    start + datum.data_start,
                                                datum.data_size,  start + datum.float_start,
                                                datum.float_count};
            std::copy(row, row + datum_numbers, rows.get() + i * datum_numbers);
        }
    }
    return {table_of(rows, n, datum_numbers), failure};
}

void datum_floats(const Bytes& message, const Floats& out) {
    Datum datum;
    if (parse_datum(message.data(), message.size(), datum) != nullptr ||
        static_cast<size_t>(datum.float_count) != out.size()) {
        throw std::invalid_argument("the message has another number of values");
    }
    copy_datum_floats(message.data(), message.size(), out.data());
}

}  // namespace

void bind_lmdb(nb::module_& module) {
    module.def("lmdb_meta", meta, array_arg("data"),
               R"(Read the newer meta page of an environment.

Page size, last page, transaction, tree of free pages, main tree; what is wrong, and where.
A tree is (root, entries, depth, flags).)");
    module.def("lmdb_tree", tree_at, array_arg("record"), "The tree that the record of a named database describes.");
    module.def("lmdb_walk", walk, array_arg("data"), nb::arg("page_size"), nb::arg("tree"),
               R"(Find all entries of a tree in order.

Starts and sizes of keys, starts and sizes of values, numbers of the entries that are named
databases; (reason, offset) of what is wrong; whether that is only several values of a key.)");
    module.def("datum_scan", datums, array_arg("data"), array_arg("starts"), array_arg("sizes"),
               R"(Find the parts of Caffe's Datum messages, and (row, reason) of the first that is none.

Columns: channels, height, width, label, encoded, start and size of data (-1: none), start and count
of float_data (n x 9).)");
    module.def("datum_floats", datum_floats, array_arg("message"), array_arg("out"),
               "Copy the values of float_data of one Datum message.");
}

}  // namespace batchplant
