#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "../io/bytes.hpp"
#include "../records/datum.hpp"
#include "../records/lmdb_pages.hpp"
#include "bind.hpp"

namespace batchplant {
namespace {

template <typename T>
using Out = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
using Table = nb::ndarray<nb::numpy, int64_t, nb::ndim<2>>;
using Floats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Failure = std::optional<std::tuple<std::string, size_t>>;
using Tree = std::tuple<uint64_t, uint64_t, uint16_t, uint16_t>;

template <typename T>
Out<T> array_of(const std::vector<T>& values) {
    auto memory = std::make_unique_for_overwrite<T[]>(values.size());
    std::copy(values.begin(), values.end(), memory.get());
    T* data = memory.get();
    return Out<T>(data, {values.size()}, owner_of(memory));
}

Failure failure_of(const LmdbError& error) {
    if (error.message == nullptr) return {};
    return std::make_tuple(std::string(error.message), error.offset);
}

Tree tuple_of(const LmdbTree& tree) { return {tree.root, tree.entries, tree.depth, tree.flags}; }

std::tuple<uint32_t, uint64_t, uint64_t, Tree, Tree, Failure> meta(const Bytes& data) {
    const LmdbMeta found = read_lmdb_meta(data.data(), data.size());
    return {found.page_size,      found.last_page,          found.transaction, tuple_of(found.free_pages),
            tuple_of(found.main), failure_of(found.error)};
}

Tree tree_at(const Bytes& record) {
    if (record.size() != lmdb_tree_size) throw std::invalid_argument("a database's record has 48 bytes");
    return tuple_of(read_lmdb_tree(record.data()));
}

std::tuple<Out<int64_t>, Out<uint16_t>, Out<int64_t>, Out<int64_t>, Out<int64_t>, Failure, bool> walk(
    const Bytes& data, uint32_t page_size, const Tree& tree) {
    LmdbEntries found;
    {
        nb::gil_scoped_release unlocked;
        const auto [root, entries, depth, flags] = tree;
        found = walk_lmdb(data.data(), data.size(), page_size, {root, entries, depth, flags});
    }
    return {array_of(found.key_starts), array_of(found.key_sizes), array_of(found.starts),
            array_of(found.sizes),      array_of(found.databases), failure_of(found.error),
            found.duplicates};
}

std::tuple<Table, std::optional<std::tuple<size_t, std::string>>> datums(const Bytes& data, const Int64s& starts,
                                                                       const Int64s& sizes) {
    check_same_length(starts, "starts", sizes, "sizes");
    const size_t n = starts.size();
    auto rows = std::make_unique<int64_t[]>(n * datum_numbers);
    std::optional<std::tuple<size_t, std::string>> failure;
    {
        nb::gil_scoped_release unlocked;
        const int64_t bad = first_bad_run(starts.data(), sizes.data(), n, data.size());
        if (bad >= 0) throw_bad_run(bad);
        for (size_t i = 0; i < n; ++i) {
            Datum found;
            const int64_t start = starts.data()[i];
            const char* wrong = parse_datum(data.data() + start, static_cast<size_t>(sizes.data()[i]), found);
            if (wrong != nullptr) {
                failure = std::make_tuple(i, std::string(wrong));
                break;
            }
            const int64_t row[datum_numbers] = {found.channels,           found.height,    found.width,
                                                found.label,              found.encoded,   start + found.data_start,
                                                found.data_size,          start + found.float_start,
                                                found.float_count};
            std::copy(row, row + datum_numbers, rows.get() + i * datum_numbers);
        }
    }
    int64_t* values = rows.get();
    return {Table(values, {n, datum_numbers}, owner_of(rows)), failure};
}

void datum_floats(const Bytes& message, const Floats& out) {
    Datum found;
    if (parse_datum(message.data(), message.size(), found) != nullptr ||
        static_cast<size_t>(found.float_count) != out.size()) {
        throw std::invalid_argument("the message has another number of values");
    }
    copy_datum_floats(message.data(), message.size(), out.data());
}

}  // namespace

void bind_lmdb(nb::module_& module) {
    module.def("lmdb_meta", meta, nb::arg("data").noconvert(), "What the newer meta page of an environment says.");
    module.def("lmdb_tree", tree_at, nb::arg("record").noconvert(), "The tree that the record of a database names.");
    module.def("lmdb_walk", walk, nb::arg("data").noconvert(), nb::arg("page_size"), nb::arg("tree"),
               "Where the keys and values of a tree lie, in order.");
    module.def("datum_scan", datums, nb::arg("data").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), "Where the parts of Caffe's Datum messages lie.");
    module.def("datum_floats", datum_floats, nb::arg("message").noconvert(), nb::arg("out").noconvert(),
               "Copy float_data of one Datum message.");
}

}  // namespace batchplant
