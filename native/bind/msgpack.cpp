#include "../records/msgpack.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "../io/bytes.hpp"
#include "bind.hpp"

namespace batchplant {
namespace {

using namespace msgpack;
using Int32s = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
nb::ndarray<nb::numpy, T> array_of(std::unique_ptr<T[]>& memory, std::initializer_list<size_t> shape) {
    T* const values = memory.get();
    return nb::ndarray<nb::numpy, T>(values, shape, owner_of(memory));
}

// Nothing reads the memory before it is written.
template <typename T>
std::unique_ptr<T[]> room_for(size_t count) {
    return std::unique_ptr<T[]>(new T[count]);
}

nb::object failure_of(const Failure& failure) {
    if (failure.row < 0) return nb::none();
    return nb::make_tuple(failure.row, failure.offset, failure.reason);
}

void check_length(const char* name, size_t have, size_t want) {
    if (have == want) return;
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(have) + " entries, not " +
                                std::to_string(want));
}

std::string string_of(nb::handle bytes) {
    nb::bytes found;
    if (!nb::try_cast<nb::bytes>(bytes, found, false)) throw nb::type_error("bytes are needed");
    return {found.c_str(), found.size()};
}

nb::tuple scan(const Bytes& piece, int64_t base, uint64_t left, uint64_t most, uint64_t todo, uint64_t skip) {
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
    return nb::make_tuple(array_of(starts, {scanner.starts.size()}), used, scanner.todo, scanner.skip,
                          static_cast<int>(scanner.fault));
}

nb::tuple find_keys(const Bytes& data, const Int64s& starts, const Int64s& sizes, const nb::object& wanted) {
    check_same_length(starts, "starts", sizes, "sizes");
    std::vector<std::string> keys;
    const bool whole = wanted.is_none();
    if (!whole) {
        for (nb::handle key : nb::cast<nb::list>(wanted)) keys.push_back(string_of(key));
    }
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
    return nb::make_tuple(array_of(info, {count, n}), array_of(at, {count, n}), array_of(size, {count, n}),
                          failure_of(failure));
}

void check_number(const std::string& kind, size_t width) {
    const bool known = kind == "f" ? width == 4 || width == 8
                       : kind == "b" ? width == 1
                                     : (kind == "i" || kind == "u") && (width == 1 || width == 2 || width == 4 || width == 8);
    if (!known) throw std::invalid_argument("there is no such number: " + kind + std::to_string(width));
}

nb::object numbers_into(const Bytes& data, const Int32s& info, const Int64s& starts, const std::string& kind,
                        size_t width, const MutableBytes& out) {
    check_length("info", info.size(), starts.size());
    check_length("out", out.size(), starts.size() * width);
    check_number(kind, width);
    Failure failure;
    {
        nb::gil_scoped_release unlocked;
        failure = numbers(data.data(), data.size(), info.data(), starts.data(), starts.size(), kind[0], width, out.data());
    }
    return failure_of(failure);
}

nb::tuple arrays_of(const Bytes& data, const Int32s& info, const Int64s& starts, const Int64s& sizes,
                    const nb::bytes& dtype, size_t width, size_t rank) {
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
    return nb::make_tuple(array_of(found, {n}), array_of(at, {n}), array_of(size, {n}), array_of(shapes, {n, rank}),
                          failure_of(failure));
}

nb::tuple lists_of(const Bytes& data, const Int32s& info, const Int64s& starts, const Int64s& sizes,
                   const std::string& kind, size_t width, size_t rank) {
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
    return nb::make_tuple(array_of(found, {n}), array_of(size, {n}), array_of(shapes, {n, rank}), array_of(out, {total}));
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

nb::tuple pack_rows(size_t n, const nb::list& given) {
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
    if (failure.row >= 0) return nb::make_tuple(nb::none(), nb::none(), failure_of(failure));
    return nb::make_tuple(array_of(out, {size}), array_of(offsets, {n + 1}), nb::none());
}

constexpr int deepest = 256;

// Builds Python objects of a value that is known to lie in its bytes as a whole.
struct Loader {
    const uint8_t* at;
    const uint8_t* end;
    const nb::callable& extension;

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
        PyObject* made = PyUnicode_DecodeUTF8(reinterpret_cast<const char*>(payload), static_cast<Py_ssize_t>(size), nullptr);
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

nb::object load_value(const Bytes& data, int64_t start, int64_t size, const nb::callable& extension) {
    if (!run_fits(start, size, data.size())) throw std::out_of_range("the value is out of bounds");
    const uint8_t* const at = data.data() + start;
    if (skip_value(at, at + size) != at + size) throw std::invalid_argument("the value is cut short");
    return Loader{at, at + size, extension}.load(0);
}

}  // namespace

void bind_msgpack(nb::module_& module) {
    module.def("msgpack_scan", scan, nb::arg("piece").noconvert(), nb::arg("base"), nb::arg("left"), nb::arg("most"),
               nb::arg("todo"), nb::arg("skip"), "Where the values at the top of a MessagePack stream begin.");
    module.def("msgpack_find", find_keys, nb::arg("data").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), nb::arg("keys").none(), "Where the values of these keys lie in each map.");
    module.def("msgpack_numbers", numbers_into, nb::arg("data").noconvert(), nb::arg("info").noconvert(),
               nb::arg("starts").noconvert(), nb::arg("kind"), nb::arg("width"), nb::arg("out").noconvert(),
               "Convert the numbers that msgpack_find found.");
    module.def("msgpack_arrays", arrays_of, nb::arg("data").noconvert(), nb::arg("info").noconvert(),
               nb::arg("starts").noconvert(), nb::arg("sizes").noconvert(), nb::arg("dtype"), nb::arg("width"),
               nb::arg("rank"), "Where the values of the arrays lie that msgpack_find found.");
    module.def("msgpack_lists", lists_of, nb::arg("data").noconvert(), nb::arg("info").noconvert(),
               nb::arg("starts").noconvert(), nb::arg("sizes").noconvert(), nb::arg("kind"), nb::arg("width"),
               nb::arg("rank"), "Convert the lists of numbers that msgpack_find found.");
    module.def("msgpack_pack", pack_rows, nb::arg("rows"), nb::arg("columns"), "One MessagePack map for each row.");
    module.def("msgpack_load", load_value, nb::arg("data").noconvert(), nb::arg("start"), nb::arg("size"),
               nb::arg("extension"), "One value as Python objects.");
}

}  // namespace batchplant
