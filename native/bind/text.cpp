#include "../text/text.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "../io/bytes.hpp"
#include "../text/csv.hpp"
#include "../text/json.hpp"
#include "bind.hpp"

namespace batchplant {
namespace {

template <typename T>
nb::ndarray<nb::numpy, T> array_of(std::unique_ptr<T[]>& memory, std::initializer_list<size_t> shape) {
    T* const values = memory.get();
    return nb::ndarray<nb::numpy, T>(values, shape, owner_of(memory));
}

template <typename T>
nb::ndarray<nb::numpy, T> copy_of(const std::vector<T>& values) {
    auto memory = std::make_unique_for_overwrite<T[]>(values.size());
    std::copy(values.begin(), values.end(), memory.get());
    return array_of(memory, {values.size()});
}

// The vector itself becomes the array's memory.
nb::ndarray<nb::numpy, uint8_t> bytes_of(std::vector<uint8_t>&& values) {
    auto* const kept = new std::vector<uint8_t>(std::move(values));
    nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<uint8_t>*>(p); });
    return nb::ndarray<nb::numpy, uint8_t>(kept->data(), {kept->size()}, owner);
}

nb::object failure_of(const text::Failure& failure) {
    if (failure.row < 0) return nb::none();
    return nb::make_tuple(failure.row, failure.offset, failure.reason);
}

// Runs that lie in the data; a size of -1 is a missing cell.
void check_runs(const Bytes& data, const Int64s& starts, const Int64s& sizes) {
    check_same_length(starts, "starts", sizes, "sizes");
    const auto total = static_cast<int64_t>(data.size());
    for (size_t i = 0; i < starts.size(); ++i) {
        const int64_t start = starts.data()[i];
        const int64_t size = std::max<int64_t>(sizes.data()[i], 0);
        if (start < 0 || start > total || size > total - start) throw_bad_run(static_cast<int64_t>(i));
    }
}

text::Dtype dtype_of(const std::string& kind, size_t size) {
    const text::Dtype dtype{kind.empty() ? '?' : kind[0], static_cast<uint8_t>(size)};
    if (kind.size() != 1 || size > 8 || !text::is_known(dtype)) {
        throw std::invalid_argument("there is no such number: " + kind + std::to_string(size));
    }
    return dtype;
}

// (offset, line, column, reason, extra) of every bad row.
nb::ndarray<nb::numpy, int64_t> bad_of(const std::vector<text::BadRow>& bad) {
    auto memory = std::make_unique_for_overwrite<int64_t[]>(bad.size() * 5);
    for (size_t i = 0; i < bad.size(); ++i) {
        const text::BadRow& one = bad[i];
        const int64_t row[] = {one.offset, one.place.line, one.place.column, static_cast<int64_t>(one.reason), one.extra};
        std::copy(row, row + 5, memory.get() + 5 * i);
    }
    return array_of(memory, {bad.size(), 5});
}

template <typename Scanner>
size_t feed(Scanner& scanner, const Bytes& piece, int64_t base, bool final) {
    nb::gil_scoped_release unlocked;
    return scanner.feed(piece.data(), piece.size(), base, final);
}

uint8_t escape_of(const std::string& escape) {
    if (escape.size() > 1) throw std::invalid_argument("an escape is one byte");
    return escape.empty() ? uint8_t{0} : static_cast<uint8_t>(escape[0]);
}

csv::Dialect dialect_of(const std::string& delimiter, bool blank_rows, std::vector<std::string> missing,
                        const std::string& escape) {
    if (delimiter.size() != 1) throw std::invalid_argument("a delimiter is one byte");
    return {static_cast<uint8_t>(delimiter[0]), blank_rows, std::move(missing), escape_of(escape)};
}

nb::object csv_first(const Bytes& data, const std::string& delimiter, bool final, const std::string& escape) {
    std::vector<csv::Field> fields;
    const csv::Dialect dialect = dialect_of(delimiter, false, {}, escape);
    const csv::Row row = csv::first_row(data.data(), data.size(), 0, dialect, final, fields);
    if (!row.complete) return nb::none();
    nb::list texts;
    for (const csv::Field& field : fields) {
        std::string copy(field.size, '\0');
        auto* const to = reinterpret_cast<uint8_t*>(copy.data());
        const uint8_t* const from = data.data() + field.start;
        size_t size = field.size;
        if (field.special != 0) {
            size = static_cast<size_t>(csv::unquote(from, size, field.special, dialect.escape, to) - to);
        } else if (size > 0) {
            std::memcpy(to, from, size);
        }
        texts.append(nb::bytes(copy.data(), size));
    }
    return nb::make_tuple(texts, row.end, static_cast<int>(row.fault), row.fault_at);
}

nb::tuple csv_find(const Bytes& data, const Int64s& starts, const Int64s& sizes, const std::string& delimiter,
                   const std::vector<std::string>& missing, size_t columns, const std::vector<int64_t>& wanted,
                   const std::vector<bool>& empty, const std::string& escape) {
    check_same_length(starts, "starts", sizes, "sizes");
    if (wanted.size() != empty.size()) throw std::invalid_argument("wanted and empty differ in length");
    const size_t n = starts.size();
    const size_t entries = n * wanted.size();
    auto start = std::make_unique<int64_t[]>(entries);
    auto size = std::make_unique<int64_t[]>(entries);
    auto special = std::make_unique<uint8_t[]>(entries);
    std::fill_n(size.get(), entries, int64_t{-1});
    const csv::Dialect dialect = dialect_of(delimiter, false, missing, escape);
    text::Failure failure;
    {
        nb::gil_scoped_release unlocked;
        failure = csv::find(data.data(), data.size(), starts.data(), sizes.data(), n, dialect, columns, wanted, empty,
                            start.get(), size.get(), special.get());
    }
    return nb::make_tuple(array_of(start, {wanted.size(), n}), array_of(size, {wanted.size(), n}),
                          array_of(special, {wanted.size(), n}), failure_of(failure));
}

std::string string_of(nb::handle bytes) {
    nb::bytes found;
    if (!nb::try_cast<nb::bytes>(bytes, found, false)) throw nb::type_error("bytes are needed");
    return {found.c_str(), found.size()};
}

nb::tuple json_find(const Bytes& data, const Int64s& starts, const Int64s& sizes, const nb::object& wanted) {
    check_same_length(starts, "starts", sizes, "sizes");
    std::vector<std::string> keys;
    const bool bare = wanted.is_none();
    if (!bare) {
        for (nb::handle key : nb::cast<nb::list>(wanted)) keys.push_back(string_of(key));
    }
    const size_t n = starts.size();
    const size_t count = bare ? 1 : keys.size();
    auto kind = std::make_unique_for_overwrite<uint8_t[]>(n * count);
    auto start = std::make_unique_for_overwrite<int64_t[]>(n * count);
    auto size = std::make_unique_for_overwrite<int64_t[]>(n * count);
    text::Failure failure;
    {
        nb::gil_scoped_release unlocked;
        failure = json::find(data.data(), data.size(), starts.data(), sizes.data(), n, keys, bare,
                             {kind.get(), start.get(), size.get()});
    }
    return nb::make_tuple(array_of(kind, {count, n}), array_of(start, {count, n}), array_of(size, {count, n}),
                          failure_of(failure));
}

// Every cell as it is meant, those that `special` marks by `change`; missing ones are empty.
template <typename Change>
nb::tuple plain_cells(const Bytes& data, const Int64s& starts, const Int64s& sizes, const Bytes& special, Change change) {
    check_runs(data, starts, sizes);
    const size_t n = starts.size();
    if (special.size() != n) throw std::invalid_argument("there is not one mark for each cell");
    auto offsets = std::make_unique_for_overwrite<int64_t[]>(n + 1);
    std::vector<uint8_t> out;
    {
        nb::gil_scoped_release unlocked;
        size_t total = 0;
        for (size_t i = 0; i < n; ++i) total += static_cast<size_t>(std::max<int64_t>(sizes.data()[i], 0));
        out.resize(total);
        uint8_t* to = out.data();
        offsets[0] = 0;
        for (size_t i = 0; i < n; ++i) {
            const uint8_t* const from = data.data() + starts.data()[i];
            const auto size = static_cast<size_t>(std::max<int64_t>(sizes.data()[i], 0));
            if (special.data()[i] != 0) {
                to = change(from, size, special.data()[i], to);
            } else if (size > 0) {
                std::memcpy(to, from, size);
                to += size;
            }
            offsets[i + 1] = to - out.data();
        }
        out.resize(static_cast<size_t>(to - out.data()));
    }
    return nb::make_tuple(bytes_of(std::move(out)), array_of(offsets, {n + 1}));
}

nb::object text_numbers(const Bytes& data, const Int64s& starts, const Int64s& sizes, const std::string& kind,
                        size_t size, const MutableBytes& out) {
    check_runs(data, starts, sizes);
    const text::Dtype dtype = dtype_of(kind, size);
    if (out.size() != starts.size() * size) throw std::invalid_argument("out has not the size of all numbers");
    text::Failure failure;
    {
        nb::gil_scoped_release unlocked;
        failure = text::numbers(data.data(), starts.data(), sizes.data(), starts.size(), dtype, out.data());
    }
    return failure_of(failure);
}

nb::tuple text_base64(const Bytes& data, const Int64s& starts, const Int64s& sizes) {
    check_runs(data, starts, sizes);
    auto offsets = std::make_unique<int64_t[]>(starts.size() + 1);
    std::vector<uint8_t> out;
    text::Failure failure;
    {
        nb::gil_scoped_release unlocked;
        failure = text::from_base64(data.data(), starts.data(), sizes.data(), starts.size(), out, offsets.get());
    }
    return nb::make_tuple(bytes_of(std::move(out)), array_of(offsets, {starts.size() + 1}), failure_of(failure));
}

nb::tuple json_arrays(const Bytes& data, const Int64s& starts, const Int64s& sizes, const std::string& kind, size_t size,
                      const std::vector<int64_t>& dims) {
    check_runs(data, starts, sizes);
    const text::Dtype dtype = dtype_of(kind, size);
    if (dims.empty()) throw std::invalid_argument("an array has an axis");
    auto offsets = std::make_unique<int64_t[]>(starts.size() + 1);
    std::vector<uint8_t> out;
    text::Failure failure;
    {
        nb::gil_scoped_release unlocked;
        failure = json::arrays(data.data(), starts.data(), sizes.data(), starts.size(), dtype, dims, out, offsets.get());
    }
    return nb::make_tuple(bytes_of(std::move(out)), array_of(offsets, {starts.size() + 1}), failure_of(failure));
}

nb::ndarray<nb::numpy, uint8_t> json_check(const Bytes& data, const Int64s& starts, const Int64s& sizes) {
    check_runs(data, starts, sizes);
    auto reasons = std::make_unique_for_overwrite<uint8_t[]>(starts.size());
    {
        nb::gil_scoped_release unlocked;
        json::check(data.data(), starts.data(), sizes.data(), starts.size(), reasons.get());
    }
    return array_of(reasons, {starts.size()});
}

nb::ndarray<nb::numpy, uint8_t> utf8_check(const Bytes& data, const Int64s& starts, const Int64s& sizes) {
    check_runs(data, starts, sizes);
    auto wrong = std::make_unique_for_overwrite<uint8_t[]>(starts.size());
    {
        nb::gil_scoped_release unlocked;
        for (size_t i = 0; i < starts.size(); ++i) {
            const auto size = static_cast<size_t>(std::max<int64_t>(sizes.data()[i], 0));
            wrong[i] = text::valid_utf8(data.data() + starts.data()[i], size) != size;
        }
    }
    return array_of(wrong, {starts.size()});
}

// parts: (key, mode, kind, size, data, starts, sizes, inner axes, omit) of every column.
nb::tuple text_pack(size_t rows, const nb::list& given, bool json, const std::string& delimiter, const nb::bytes& before,
                    const nb::bytes& after) {
    std::vector<text::Part> parts;
    std::vector<Bytes> held;
    std::vector<Int64s> held_runs;
    text::Style style{json, delimiter.size() == 1 ? delimiter[0] : ',', string_of(before), string_of(after)};
    for (nb::handle one : given) {
        const auto tuple = nb::cast<nb::tuple>(one);
        if (tuple.size() != 9) throw std::invalid_argument("a part has nine entries");
        text::Part part;
        part.key = string_of(tuple[0]);
        const auto mode = nb::cast<int>(tuple[1]);
        if (mode < 0 || mode > 4) throw std::invalid_argument("there is no such mode");
        part.mode = static_cast<text::Mode>(mode);
        const auto data = nb::cast<Bytes>(tuple[4]);
        const auto starts = nb::cast<Int64s>(tuple[5]);
        const auto sizes = nb::cast<Int64s>(tuple[6]);
        check_runs(data, starts, sizes);
        if (starts.size() != rows) throw std::invalid_argument("a part has not one run for each row");
        part.inner = nb::cast<std::vector<int64_t>>(tuple[7]);
        if (part.mode == text::Mode::number || part.mode == text::Mode::array) {
            part.dtype = dtype_of(nb::cast<std::string>(tuple[2]), nb::cast<size_t>(tuple[3]));
            size_t width = part.dtype.size;
            for (const int64_t axis : part.inner) {
                if (axis < 0) throw std::invalid_argument("an axis is negative");
                width *= static_cast<size_t>(axis);
            }
            for (size_t i = 0; i < rows; ++i) {
                const int64_t size = sizes.data()[i];
                const bool fits = part.mode == text::Mode::number ? size == part.dtype.size
                                  : width == 0                    ? size == 0
                                                                  : size % static_cast<int64_t>(width) == 0;
                if (size >= 0 && !fits) throw std::invalid_argument("cell " + std::to_string(i) + " has not the size of its numbers");
            }
        }
        part.data = data.data();
        part.starts = starts.data();
        part.sizes = sizes.data();
        part.omit = nb::cast<bool>(tuple[8]);
        held.push_back(data);
        held_runs.insert(held_runs.end(), {starts, sizes});
        parts.push_back(std::move(part));
    }
    auto offsets = std::make_unique<int64_t[]>(rows + 1);
    std::vector<uint8_t> out;
    {
        nb::gil_scoped_release unlocked;
        text::pack(rows, parts, style, out, offsets.get());
    }
    return nb::make_tuple(bytes_of(std::move(out)), array_of(offsets, {rows + 1}));
}

// What a key's values are like: (name, classes, records, classes of elements, sizes of axes, irregular, empty).
nb::tuple key_facts(const json::Key& key) {
    nb::list dims;
    for (uint32_t i = 0; i < key.rank; ++i) dims.append(key.dims[i]);
    return nb::make_tuple(nb::bytes(key.name.data(), key.name.size()), key.classes, key.records, key.elements, dims,
                          key.irregular, key.empty);
}

}  // namespace

void bind_text(nb::module_& module) {
    nb::class_<csv::Scanner>(module, "CsvScanner", "Finds the rows of a CSV file that comes in pieces.")
        .def("__init__",
             [](csv::Scanner* self, const std::string& delimiter, size_t columns, bool blank_rows,
                const std::vector<std::string>& missing, int64_t line, const std::string& escape) {
                 new (self) csv::Scanner{dialect_of(delimiter, blank_rows, missing, escape), columns, line, {}, {}, {}};
             },
             nb::arg("delimiter"), nb::arg("columns"), nb::arg("blank_rows"), nb::arg("missing"), nb::arg("line"),
             nb::arg("escape") = "")
        .def("feed", feed<csv::Scanner>, nb::arg("piece").noconvert(), nb::arg("base"), nb::arg("final"))
        .def_prop_ro("starts", [](const csv::Scanner& self) { return copy_of(self.starts); }, nb::rv_policy::automatic)
        .def_prop_ro("bad", [](const csv::Scanner& self) { return bad_of(self.bad); }, nb::rv_policy::automatic)
        .def_prop_ro("classes", [](const csv::Scanner& self) { return self.classes; });
    nb::class_<json::Scanner>(module, "JsonScanner", "Finds the records of a JSON file that comes in pieces.")
        .def("__init__",
             [](json::Scanner* self, int layout) {
                 new (self) json::Scanner();
                 self->layout = static_cast<json::Layout>(layout);
             },
             nb::arg("layout"))
        .def("feed", feed<json::Scanner>, nb::arg("piece").noconvert(), nb::arg("base"), nb::arg("final"))
        .def_prop_ro("broken", [](const json::Scanner& self) { return self.broken; })
        .def_prop_ro("starts", [](const json::Scanner& self) { return copy_of(self.starts); }, nb::rv_policy::automatic)
        .def_prop_ro("bad", [](const json::Scanner& self) { return bad_of(self.bad); }, nb::rv_policy::automatic)
        .def_prop_ro("objects", [](const json::Scanner& self) { return self.objects; })
        .def_prop_ro("too_many", [](const json::Scanner& self) { return self.too_many; })
        .def_prop_ro("bare", [](const json::Scanner& self) { return key_facts(self.bare); })
        .def_prop_ro("keys", [](const json::Scanner& self) {
            nb::list found;
            for (const json::Key& key : self.keys) found.append(key_facts(key));
            return found;
        });
    module.def("csv_first", csv_first, nb::arg("data").noconvert(), nb::arg("delimiter"), nb::arg("final"),
               nb::arg("escape") = "",
               "The fields of the first row, where it ends, the fault and its place; None where the data end before.");
    module.def("csv_find", csv_find, nb::arg("data").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), nb::arg("delimiter"), nb::arg("missing"), nb::arg("columns"),
               nb::arg("wanted"), nb::arg("empty"), nb::arg("escape") = "", "Where the cells of these columns lie in rows.");
    module.def("json_find", json_find, nb::arg("data").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), nb::arg("keys").none(), "Where the values of these keys lie in records.");
    module.def(
        "csv_unquote",
        [](const Bytes& data, const Int64s& starts, const Int64s& sizes, const Bytes& special, const std::string& escape) {
            const uint8_t sign = escape_of(escape);
            return plain_cells(data, starts, sizes, special, [sign](const uint8_t* at, size_t size, uint8_t mark, uint8_t* out) {
                return csv::unquote(at, size, mark, sign, out);
            });
        },
        nb::arg("data").noconvert(), nb::arg("starts").noconvert(), nb::arg("sizes").noconvert(),
        nb::arg("special").noconvert(), nb::arg("escape") = "",
        "Cells one after another; in those that are marked two quotes become one (1), escapes what they mean (2).");
    module.def(
        "json_unescape",
        [](const Bytes& data, const Int64s& starts, const Int64s& sizes, const Bytes& escaped) {
            return plain_cells(data, starts, sizes, escaped, [](const uint8_t* at, size_t size, uint8_t, uint8_t* out) {
                return json::unescape(at, size, out);
            });
        },
        nb::arg("data").noconvert(), nb::arg("starts").noconvert(), nb::arg("sizes").noconvert(),
        nb::arg("escaped").noconvert(), "Cells one after another; in those that are marked escapes are resolved.");
    module.def("text_numbers", text_numbers, nb::arg("data").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), nb::arg("kind"), nb::arg("size"), nb::arg("out").noconvert(),
               "Numbers out of their text; missing ones (-1) are zero. The first that is none, or None.");
    module.def("text_base64", text_base64, nb::arg("data").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), "The bytes of base64 texts.");
    module.def("json_arrays", json_arrays, nb::arg("data").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), nb::arg("kind"), nb::arg("size"), nb::arg("dims"),
               "The numbers of nested lists of these sizes (the first may be -1).");
    module.def("json_check", json_check, nb::arg("data").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), "Why each run is not one JSON value; 0 where it is.");
    module.def("utf8_check", utf8_check, nb::arg("data").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), "1 for each run that is no UTF-8.");
    module.def("text_pack", text_pack, nb::arg("rows"), nb::arg("parts"), nb::arg("json"), nb::arg("delimiter"),
               nb::arg("before"), nb::arg("after"), "Rows of CSV or JSON, put together from columns.");
}

}  // namespace batchplant
