#include "../records/msgpack.hpp"

#include <bit>
#include <cstring>
#include <initializer_list>

#include "bind.hpp"

namespace batchplant {
namespace {

using namespace msgpack;

using Columns = nb::typed<nb::list, nb::typed<nb::tuple, nb::any, nb::ellipsis>>;
using MakeExtension = nb::typed<nb::callable, nb::object(int, nb::bytes)>;

// Nothing reads the memory before it is written.
template <typename T>
std::unique_ptr<T[]> room_for(size_t count) {
    return std::unique_ptr<T[]>(new T[count]);
}

std::tuple<Array<int64_t>, size_t, uint64_t, uint64_t, int> scan(const Bytes& piece, int64_t base, uint64_t left,
                                                                 uint64_t most, uint64_t todo, uint64_t skip) {
    Scanner scanner;
    scanner.todo = todo;
    scanner.skip = skip;
    size_t used = 0;
    std::unique_ptr<int64_t[]> starts;
    {
        nb::gil_scoped_release unlocked;
        if (left < piece.size()) throw std::invalid_argument("the piece is longer than what is left");
        used = scanner.feed(piece.data(), piece.size(), base, left, most);
        starts = room_for<int64_t>(scanner.starts.size());
        std::copy(scanner.starts.begin(), scanner.starts.end(), starts.get());
    }
    return {array_of(starts, scanner.starts.size()), used, scanner.todo, scanner.skip, static_cast<int>(scanner.fault)};
}

std::tuple<Table<int32_t>, Table<int64_t>, Table<int64_t>, RowFailure> find_keys(
    const Bytes& data, const Int64s& starts, const Int64s& sizes, const std::optional<ByteStrings>& wanted) {
    check_same_length(starts, "starts", sizes, "sizes");
    const bool whole = !wanted;
    const std::vector<std::string> keys = whole ? std::vector<std::string>() : strings_of(*wanted);
    const size_t n = starts.size();
    const size_t count = whole ? 1 : keys.size();
    auto info = room_for<int32_t>(n * count);
    auto at = room_for<int64_t>(n * count);
    auto size = room_for<int64_t>(n * count);
    Failure failure;
    {
        nb::gil_scoped_release unlocked;
        const Places places{info.get(), at.get(), size.get()};
        failure = whole ? find_values(data.data(), data.size(), starts.data(), sizes.data(), n, places)
                        : find(data.data(), data.size(), starts.data(), sizes.data(), n, keys, places);
    }
    return {table_of(info, count, n), table_of(at, count, n), table_of(size, count, n), failure_of(failure)};
}

void check_number(const std::string& kind, size_t width) {
    const bool known = kind == "f" ? width == 4 || width == 8
                       : kind == "b"
                           ? width == 1
                           : (kind == "i" || kind == "u") && (width == 1 || width == 2 || width == 4 || width == 8);
    if (!known) throw std::invalid_argument("there is no such number: " + kind + std::to_string(width));
}

RowFailure numbers_into(const Bytes& data, const Int32s& info, const Int64s& starts, const std::string& kind,
                        size_t width, const MutableBytes& out) {
    check_length("info", info.size(), starts.size());
    check_length("out", out.size(), starts.size() * width);
    check_number(kind, width);
    Failure failure;
    {
        nb::gil_scoped_release unlocked;
        failure =
            numbers(data.data(), data.size(), info.data(), starts.data(), starts.size(), kind[0], width, out.data());
    }
    return failure_of(failure);
}

std::tuple<Array<uint8_t>, Array<int64_t>, Array<int64_t>, Table<int64_t>, RowFailure> arrays_of(
    const Bytes& data, const Int32s& info, const Int64s& starts, const Int64s& sizes, const nb::bytes& dtype,
    size_t width, size_t rank) {
    check_same_length(starts, "starts", sizes, "sizes");
    check_length("info", info.size(), starts.size());
    if (rank > 255) throw std::invalid_argument("an array has at most 255 axes");
    const std::string name = string_of(dtype);
    const size_t n = starts.size();
    auto found = room_for<uint8_t>(n);
    auto at = room_for<int64_t>(n);
    auto size = room_for<int64_t>(n);
    auto shapes = room_for<int64_t>(n * rank);
    Failure failure;
    {
        nb::gil_scoped_release unlocked;
        failure = arrays(data.data(), data.size(), info.data(), starts.data(), sizes.data(), n, name, width, rank,
                         found.get(), at.get(), size.get(), shapes.get());
    }
    return {array_of(found, n), array_of(at, n), array_of(size, n), table_of(shapes, n, rank), failure_of(failure)};
}

std::tuple<Array<uint8_t>, Array<int64_t>, Table<int64_t>, Array<uint8_t>> lists_of(
    const Bytes& data, const Int32s& info, const Int64s& starts, const Int64s& sizes, const std::string& kind,
    size_t width, size_t rank) {
    check_same_length(starts, "starts", sizes, "sizes");
    check_length("info", info.size(), starts.size());
    check_number(kind, width);
    if (rank > 255) throw std::invalid_argument("an array has at most 255 axes");
    const size_t n = starts.size();
    auto found = room_for<uint8_t>(n);
    auto size = room_for<int64_t>(n);
    auto shapes = room_for<int64_t>(n * rank);
    std::unique_ptr<uint8_t[]> out;
    size_t total = 0;
    {
        nb::gil_scoped_release unlocked;
        std::vector<uint8_t> values;
        lists(data.data(), data.size(), info.data(), starts.data(), sizes.data(), n, kind[0], width, rank, found.get(),
              size.get(), shapes.get(), values);
        total = values.size();
        out = room_for<uint8_t>(total);
        std::copy(values.begin(), values.end(), out.get());
    }
    return {array_of(found, n), array_of(size, n), table_of(shapes, n, rank), array_of(out, total)};
}

template <typename Array>
Array borrowed(nb::handle item, const char* name) {
    Array array;
    if (!nb::try_cast<Array>(item, array, false)) {
        throw nb::type_error((std::string(name) + " must be a contiguous one-dimensional array").c_str());
    }
    return array;
}

// The arrays live as long as the list of columns, which the caller holds.
Column column_of(nb::handle item, size_t n) {
    const auto parts = nb::cast<nb::tuple>(item);
    check_length("a column", nb::len(parts), 9);
    Column column;
    column.key = string_of(parts[0]);
    column.mode = nb::cast<std::string>(parts[1]).at(0);
    column.width = nb::cast<size_t>(parts[2]);
    const auto data = borrowed<Bytes>(parts[3], "data");
    const auto starts = borrowed<Int64s>(parts[4], "starts");
    const auto sizes = borrowed<Int64s>(parts[5], "sizes");
    check_length("starts", starts.size(), n);
    check_length("sizes", sizes.size(), n);
    column.data = data.data();
    column.total = data.size();
    column.starts = starts.data();
    column.sizes = sizes.data();
    const bool number = std::strchr("iufb", column.mode) != nullptr;
    const bool array = std::strchr("en", column.mode) != nullptr;
    if (!number && !array && std::strchr("sx", column.mode) == nullptr) throw std::invalid_argument("no such mode");
    if (number != (column.width == 1 || column.width == 2 || column.width == 4 || column.width == 8)) {
        throw std::invalid_argument("no such width");
    }
    if (!array) return column;
    const auto heads = borrowed<Bytes>(parts[6], "heads");
    column.head_size = nb::cast<size_t>(parts[7]);
    column.heads = heads.data();
    if (column.head_size > 4096) throw std::invalid_argument("the heads are too long");
    check_length("heads", heads.size(), n * column.head_size);
    if (!parts[8].is_none()) {
        const auto headed = borrowed<Bytes>(parts[8], "headed");
        check_length("headed", headed.size(), n);
        column.headed = headed.data();
    }
    return column;
}

std::tuple<Array<uint8_t>, Array<int64_t>, RowFailure> pack_rows(size_t n, const Columns& given) {
    std::vector<Column> columns;
    for (nb::handle item : given) columns.push_back(column_of(item, n));
    auto offsets = room_for<int64_t>(n + 1);
    std::unique_ptr<uint8_t[]> out;
    size_t size = 0;
    Failure failure;
    {
        nb::gil_scoped_release unlocked;
        failure = measure(columns, n, offsets.get());
        if (failure.row < 0) {
            size = static_cast<size_t>(offsets[n]);
            out = room_for<uint8_t>(size);
            pack(columns, n, out.get());
        }
    }
    if (failure.row >= 0) out = room_for<uint8_t>(0);
    return {array_of(out, size), array_of(offsets, n + 1), failure_of(failure)};
}

constexpr int deepest = 256;

// Builds Python objects of a value that is known to lie in its bytes as a whole.
struct Loader {
    const uint8_t* at;
    const uint8_t* end;
    const MakeExtension& extension;

    nb::object load(int depth) {
        if (depth > deepest) throw std::invalid_argument("it is nested too deeply");
        Token token;
        if (read_token(at, end, token) != Fault::none) throw std::invalid_argument("it is cut short");
        at += token.head;
        const uint8_t* const payload = at;
        const auto size = static_cast<size_t>(token.payload);
        at += size;
        switch (token.kind) {
            case Kind::nil: return nb::none();
            case Kind::boolean: return nb::bool_((*payload & 1) != 0);
            case Kind::integer:
            case Kind::natural: return number(token, payload, size);
            case Kind::real: return real(payload, size);
            case Kind::text: return text(payload, size);
            case Kind::binary: return nb::bytes(payload, size);
            case Kind::extension: return extension(static_cast<int>(token.type), nb::bytes(payload, size));
            case Kind::array: return list(token.values, depth);
            default: return map(token.values / 2, depth);
        }
    }

    static uint64_t bits(const uint8_t* payload, size_t size) {
        uint64_t value = 0;
        for (size_t i = 0; i < size; ++i) value = value << 8 | payload[i];
        return value;
    }

    static nb::object number(const Token& token, const uint8_t* payload, size_t size) {
        const uint64_t value = bits(payload, size);
        if (token.kind == Kind::natural) return nb::int_(value);
        const auto shift = static_cast<unsigned>(64 - 8 * size);
        return nb::int_(static_cast<int64_t>(value << shift) >> shift);
    }

    static nb::object real(const uint8_t* payload, size_t size) {
        const uint64_t value = bits(payload, size);
        if (size == 8) return nb::float_(std::bit_cast<double>(value));
        return nb::float_(static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(value))));
    }

    // Old writers know no bytes, and write them as text.
    static nb::object text(const uint8_t* payload, size_t size) {
        PyObject* made =
            PyUnicode_DecodeUTF8(reinterpret_cast<const char*>(payload), static_cast<Py_ssize_t>(size), nullptr);
        if (made != nullptr) return nb::steal(made);
        PyErr_Clear();
        return nb::bytes(payload, size);
    }

    nb::object list(uint64_t count, int depth) {
        nb::list found;
        for (uint64_t i = 0; i < count; ++i) found.append(load(depth + 1));
        return found;
    }

    nb::object map(uint64_t count, int depth) {
        nb::dict found;
        for (uint64_t i = 0; i < count; ++i) {
            nb::object key = load(depth + 1);
            nb::object value = load(depth + 1);
            if (PyObject_Hash(key.ptr()) == -1) {
                PyErr_Clear();
                throw std::invalid_argument("a key is itself a list or a map");
            }
            found[key] = value;
        }
        return found;
    }
};

nb::any load_value(const Bytes& data, int64_t start, int64_t size, const MakeExtension& extension) {
    if (!run_fits(start, size, data.size())) throw std::out_of_range("the value is out of bounds");
    const uint8_t* const at = data.data() + start;
    if (skip_value(at, at + size) != at + size) throw std::invalid_argument("the value is cut short");
    return nb::steal<nb::any>(Loader{at, at + size, extension}.load(0).release());
}

}  // namespace

void bind_msgpack(nb::module_& module) {
    module.def("msgpack_scan", scan, array_arg("piece"), nb::arg("base"), nb::arg("left"), nb::arg("most"),
               nb::arg("todo"), nb::arg("skip"),
               R"(Find where the values at the top of a MessagePack stream begin; a piece of the stream at a time.

base: where in the stream the piece lies. left: bytes that the stream has from there on. most: stop
after so many values. todo, skip: as the piece before gave them, 0 at the start. Gives starts, bytes
used (the rest goes before the next piece), todo, skip, and a fault: 0 none, 1 the stream ends inside
a value, 2 a byte that MessagePack never has.)");
    module.def("msgpack_find", find_keys, array_arg("data"), array_arg("starts"), array_arg("sizes"),
               nb::arg("keys").none(),
               R"(Find the values of these keys in the map of each run; with None, the runs are values themselves.

Gives info, start and size, each with a row for every key, and (run, offset, reason) of a failure.
info is kind | bytes of the value's head << 8 | type of an extension << 16; start and size are those
of the value with its head. kind: 0 absent, 1 nil, 2 true or false, 3 signed, 4 unsigned, 5 float, 6
str, 7 bin, 8 array, 9 map, 10 extension.)");
    module.def("msgpack_numbers", numbers_into, array_arg("data"), array_arg("info"), array_arg("starts"),
               nb::arg("kind"), nb::arg("width"), array_arg("out"),
               "Convert numbers that msgpack_find found to NumPy's kind (b, i, u, f) and width; absent ones stay.");
    module.def("msgpack_arrays", arrays_of, array_arg("data"), array_arg("info"), array_arg("starts"),
               array_arg("sizes"), nb::arg("dtype"), nb::arg("width"), nb::arg("rank"),
               R"(Find the values of arrays that msgpack_find found: our extension, or msgpack-numpy's map.

Gives found (0 absent or nil, 1 an array of this dtype and rank, 2 anything else), the values' starts
and sizes, shapes, and a failure.)");
    module.def("msgpack_lists", lists_of, array_arg("data"), array_arg("info"), array_arg("starts"), array_arg("sizes"),
               nb::arg("kind"), nb::arg("width"), nb::arg("rank"),
               R"(Convert the lists of numbers, nested rank deep, that msgpack_find found.

Gives found (0 absent or nil, 1 converted, 2 anything else), sizes in bytes, shapes (-1 for what a
list without an element does not tell), and the values of all.)");
    module.def("msgpack_pack", pack_rows, nb::arg("rows"), nb::arg("columns"),
               R"(Write one map for each row: data and offsets, and a failure (row, column, reason).

After a failure, data and offsets mean nothing. A column is (key, mode, width, data, starts, sizes,
heads, head size, headed); native/records/msgpack.hpp says what they mean.)");
    module.def("msgpack_load", load_value, array_arg("data"), nb::arg("start"), nb::arg("size"), nb::arg("extension"),
               R"(Load one value as Python objects; extension(type, data) makes those of extensions.

Text that is not UTF-8 comes as bytes. ValueError for what is cut short, or nested too deeply.)");
}

}  // namespace batchplant
