#include "../text/text.hpp"

#include <cstring>
#include <initializer_list>

#include "../text/csv.hpp"
#include "../text/json.hpp"
#include "bind.hpp"

namespace batchplant {
namespace {

// Throws unless every run lies in the data; a size of -1 is a missing cell.
void check_cells(const Bytes& data, const Int64s& starts, const Int64s& sizes) {
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
Table<int64_t> bad_of(const std::vector<text::BadRow>& bad) {
    auto memory = std::make_unique_for_overwrite<int64_t[]>(bad.size() * 5);
    for (size_t i = 0; i < bad.size(); ++i) {
        const text::BadRow& one = bad[i];
        const int64_t row[] = {one.offset, one.place.line, one.place.column, static_cast<int64_t>(one.reason),
                               one.extra};
        std::copy(row, row + 5, memory.get() + 5 * i);
    }
    return table_of(memory, bad.size(), 5);
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

std::optional<std::tuple<std::vector<nb::bytes>, size_t, int, size_t>> csv_first(const Bytes& data,
                                                                                 const std::string& delimiter,
                                                                                 bool final,
                                                                                 const std::string& escape) {
    std::vector<csv::Field> fields;
    const csv::Dialect dialect = dialect_of(delimiter, false, {}, escape);
    const csv::Row row = csv::first_row(data.data(), data.size(), 0, dialect, final, fields);
    if (!row.complete) return std::nullopt;
    std::vector<nb::bytes> texts;
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
        texts.emplace_back(copy.data(), size);
    }
    return std::tuple(std::move(texts), static_cast<size_t>(row.end), static_cast<int>(row.fault),
                      static_cast<size_t>(row.fault_at));
}

std::tuple<Table<int64_t>, Table<int64_t>, Table<uint8_t>, RowFailure> csv_find(
    const Bytes& data, const Int64s& starts, const Int64s& sizes, const std::string& delimiter,
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
    return {table_of(start, wanted.size(), n), table_of(size, wanted.size(), n), table_of(special, wanted.size(), n),
            failure_of(failure)};
}

std::tuple<Table<uint8_t>, Table<int64_t>, Table<int64_t>, RowFailure> json_find(
    const Bytes& data, const Int64s& starts, const Int64s& sizes, const std::optional<ByteStrings>& wanted) {
    check_same_length(starts, "starts", sizes, "sizes");
    const bool bare = !wanted;
    const std::vector<std::string> keys = bare ? std::vector<std::string>() : strings_of(*wanted);
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
    return {table_of(kind, count, n), table_of(start, count, n), table_of(size, count, n), failure_of(failure)};
}

std::tuple<Array<int64_t>, Array<int64_t>, RowFailure> json_elements(const Bytes& data) {
    std::vector<int64_t> starts, sizes;
    text::Failure failure;
    {
        nb::gil_scoped_release unlocked;
        failure = json::elements(data.data(), data.size(), starts, sizes);
    }
    return {array_of(std::move(starts)), array_of(std::move(sizes)), failure_of(failure)};
}

using Cells = std::tuple<Array<uint8_t>, Array<int64_t>>;
using CheckedCells = std::tuple<Array<uint8_t>, Array<int64_t>, RowFailure>;

// Every cell as it is meant, those that `special` marks by `change`; missing ones are empty.
template <typename Change>
Cells plain_cells(const Bytes& data, const Int64s& starts, const Int64s& sizes, const Bytes& special, Change change) {
    check_cells(data, starts, sizes);
    const size_t n = starts.size();
    if (special.size() != n) throw std::invalid_argument("there must be one mark for each cell");
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
    return {array_of(std::move(out)), array_of(offsets, n + 1)};
}

RowFailure text_numbers(const Bytes& data, const Int64s& starts, const Int64s& sizes, const std::string& kind,
                        size_t size, const MutableBytes& out) {
    check_cells(data, starts, sizes);
    const text::Dtype dtype = dtype_of(kind, size);
    if (out.size() != starts.size() * size) throw std::invalid_argument("out does not have the size of all numbers");
    text::Failure failure;
    {
        nb::gil_scoped_release unlocked;
        failure = text::numbers(data.data(), starts.data(), sizes.data(), starts.size(), dtype, out.data());
    }
    return failure_of(failure);
}

CheckedCells text_base64(const Bytes& data, const Int64s& starts, const Int64s& sizes) {
    check_cells(data, starts, sizes);
    auto offsets = std::make_unique<int64_t[]>(starts.size() + 1);
    std::vector<uint8_t> out;
    text::Failure failure;
    {
        nb::gil_scoped_release unlocked;
        failure = text::from_base64(data.data(), starts.data(), sizes.data(), starts.size(), out, offsets.get());
    }
    return {array_of(std::move(out)), array_of(offsets, starts.size() + 1), failure_of(failure)};
}

CheckedCells json_arrays(const Bytes& data, const Int64s& starts, const Int64s& sizes, const std::string& kind,
                         size_t size, const std::vector<int64_t>& dims) {
    check_cells(data, starts, sizes);
    const text::Dtype dtype = dtype_of(kind, size);
    if (dims.empty()) throw std::invalid_argument("an array has an axis");
    auto offsets = std::make_unique<int64_t[]>(starts.size() + 1);
    std::vector<uint8_t> out;
    text::Failure failure;
    {
        nb::gil_scoped_release unlocked;
        failure =
            json::arrays(data.data(), starts.data(), sizes.data(), starts.size(), dtype, dims, out, offsets.get());
    }
    return {array_of(std::move(out)), array_of(offsets, starts.size() + 1), failure_of(failure)};
}

Array<uint8_t> json_check(const Bytes& data, const Int64s& starts, const Int64s& sizes) {
    check_cells(data, starts, sizes);
    auto reasons = std::make_unique_for_overwrite<uint8_t[]>(starts.size());
    {
        nb::gil_scoped_release unlocked;
        json::check(data.data(), starts.data(), sizes.data(), starts.size(), reasons.get());
    }
    return array_of(reasons, starts.size());
}

Array<uint8_t> utf8_check(const Bytes& data, const Int64s& starts, const Int64s& sizes) {
    check_cells(data, starts, sizes);
    auto wrong = std::make_unique_for_overwrite<uint8_t[]>(starts.size());
    {
        nb::gil_scoped_release unlocked;
        for (size_t i = 0; i < starts.size(); ++i) {
            const auto size = static_cast<size_t>(std::max<int64_t>(sizes.data()[i], 0));
            wrong[i] = text::valid_utf8(data.data() + starts.data()[i], size) != size;
        }
    }
    return array_of(wrong, starts.size());
}

// parts: (key, mode, kind, size, data, starts, sizes, inner axes, omit) of every column.
using Parts = nb::typed<nb::list, nb::typed<nb::tuple, nb::any, nb::ellipsis>>;

Cells text_pack(size_t rows, const Parts& given, bool json, const std::string& delimiter, const nb::bytes& before,
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
        check_cells(data, starts, sizes);
        if (starts.size() != rows) throw std::invalid_argument("a part must have one run for each row");
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
                if (size >= 0 && !fits)
                    throw std::invalid_argument("the size of cell " + std::to_string(i) + " does not match its dtype");
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
    return {array_of(std::move(out)), array_of(offsets, rows + 1)};
}

// Types of a key's values: (name, classes, records, classes of elements, sizes of axes, irregular, empty).
using KeyFacts = std::tuple<nb::bytes, uint32_t, int64_t, uint32_t, std::vector<int64_t>, bool, bool>;

KeyFacts key_facts(const json::Key& key) {
    return {nb::bytes(key.name.data(), key.name.size()),
            key.classes,
            key.records,
            key.elements,
            std::vector<int64_t>(key.dims.begin(), key.dims.begin() + key.rank),
            key.irregular,
            key.empty};
}

template <typename Scanner>
void bind_scanner(nb::class_<Scanner>& scanner) {
    scanner
        .def("feed", feed<Scanner>, array_arg("piece"), nb::arg("base"), nb::arg("final"),
             R"(Take a piece that begins at base of the file; gives how many of its bytes were used.

What is left over is the beginning of a row, and goes before the next piece. final: it is the last
piece.)")
        .def_prop_ro(
            "starts", [](const Scanner& self) { return copy_of(self.starts); }, nb::rv_policy::automatic,
            "Offsets of the rows.")
        .def_prop_ro(
            "bad", [](const Scanner& self) { return bad_of(self.bad); }, nb::rv_policy::automatic,
            "(offset, line, column, reason, extra) of every row that cannot be read.");
}

}  // namespace

void bind_text(nb::module_& module) {
    nb::class_<csv::Scanner> csv_scanner(module, "CsvScanner", "Finds the rows of a CSV file that comes in pieces.");
    csv_scanner
        .def(
            "__init__",
            [](csv::Scanner* self, const std::string& delimiter, size_t columns, bool blank_rows,
               const std::vector<std::string>& missing, int64_t line, const std::string& escape) {
                new (self) csv::Scanner{dialect_of(delimiter, blank_rows, missing, escape), columns, line, {}, {}, {}};
            },
            nb::arg("delimiter"), nb::arg("columns"), nb::arg("blank_rows"), nb::arg("missing"), nb::arg("line"),
            nb::arg("escape") = "", "line: the number of the first line. missing: unquoted cells that mean no value.")
        .def_prop_ro(
            "classes", [](const csv::Scanner& self) { return self.classes; },
            "Of each column, bits of what its cells could be: Class in native/text/text.hpp.");
    bind_scanner(csv_scanner);
    nb::class_<json::Scanner> json_scanner(module, "JsonScanner",
                                           "Finds the records of a JSON file that comes in pieces.");
    json_scanner
        .def(
            "__init__",
            [](json::Scanner* self, int layout) {
                new (self) json::Scanner();
                self->layout = static_cast<json::Layout>(layout);
            },
            nb::arg("layout"), "layout: 0 a record on each line, 1 values one after another, 2 one array.")
        .def_prop_ro(
            "broken", [](const json::Scanner& self) { return self.broken; }, "True if the array cannot be read on.")
        .def_prop_ro(
            "objects", [](const json::Scanner& self) { return self.objects; }, "Number of records that are objects.")
        .def_prop_ro(
            "too_many", [](const json::Scanner& self) { return self.too_many; },
            "True if there are too many different keys for a table.")
        .def_prop_ro(
            "bare", [](const json::Scanner& self) { return key_facts(self.bare); },
            "As keys, of the records that are not objects.")
        .def_prop_ro(
            "keys",
            [](const json::Scanner& self) {
                std::vector<KeyFacts> found;
                for (const json::Key& key : self.keys) found.push_back(key_facts(key));
                return found;
            },
            R"(What the values of each key are like.

(name, classes, records that have it, classes of elements, sizes of axes, irregular, empty).)");
    bind_scanner(json_scanner);
    module.def("csv_first", csv_first, array_arg("data"), nb::arg("delimiter"), nb::arg("final"),
               nb::arg("escape") = "",
               "The fields of the first row, where it ends, the fault and its place; None where the data end before.");
    module.def("csv_find", csv_find, array_arg("data"), array_arg("starts"), array_arg("sizes"), nb::arg("delimiter"),
               nb::arg("missing"), nb::arg("columns"), nb::arg("wanted"), nb::arg("empty"), nb::arg("escape") = "",
               R"(Find the cells of the wanted columns in rows, which have so many columns.

Gives start, size (-1: missing) and what csv_unquote has to do, each with a row for every column, and
a failure. empty, for each of these: an empty field is an empty cell, not a missing one.)");
    module.def("json_find", json_find, array_arg("data"), array_arg("starts"), array_arg("sizes"),
               nb::arg("keys").none(),
               R"(Find the values of these keys in records; with None, the records are values themselves.

Gives kind, start and size, each with a row for every key, and a failure. kind: 0 absent, 1 null, 2
true, 3 false, 4 number, 5 string, 6 string with escapes, 7 array, 8 object. A string is without its
quotes.)");
    module.def(
        "csv_unquote",
        [](const Bytes& data, const Int64s& starts, const Int64s& sizes, const Bytes& special,
           const std::string& escape) {
            const uint8_t sign = escape_of(escape);
            return plain_cells(data, starts, sizes, special,
                               [sign](const uint8_t* at, size_t size, uint8_t mark, uint8_t* out) {
                                   return csv::unquote(at, size, mark, sign, out);
                               });
        },
        array_arg("data"), array_arg("starts"), array_arg("sizes"), array_arg("special"), nb::arg("escape") = "",
        "Copy cells; in those marked 1 two quotes become one, in those marked 2 escapes are resolved.");
    module.def(
        "json_unescape",
        [](const Bytes& data, const Int64s& starts, const Int64s& sizes, const Bytes& escaped) {
            return plain_cells(data, starts, sizes, escaped, [](const uint8_t* at, size_t size, uint8_t, uint8_t* out) {
                return json::unescape(at, size, out);
            });
        },
        array_arg("data"), array_arg("starts"), array_arg("sizes"), array_arg("escaped"),
        "Copy cells; in those that are marked escapes are resolved.");
    module.def("text_numbers", text_numbers, array_arg("data"), array_arg("starts"), array_arg("sizes"),
               nb::arg("kind"), nb::arg("size"), array_arg("out"),
               "Convert text to numbers; missing ones (-1) are zero. The first cell that is not a number, or None.");
    module.def("text_base64", text_base64, array_arg("data"), array_arg("starts"), array_arg("sizes"),
               "Decode base64 texts: data, offsets and a failure.");
    module.def("json_elements", json_elements, array_arg("data"),
               "Locations of the elements of a JSON array: (starts, sizes, failure).");
    module.def("json_arrays", json_arrays, array_arg("data"), array_arg("starts"), array_arg("sizes"), nb::arg("kind"),
               nb::arg("size"), nb::arg("dims"),
               "Convert nested lists of numbers of these sizes (the first may be -1): data, offsets and a failure.");
    module.def("json_check", json_check, array_arg("data"), array_arg("starts"), array_arg("sizes"),
               "Why each run is not one JSON value; 0 where it is.");
    module.def("utf8_check", utf8_check, array_arg("data"), array_arg("starts"), array_arg("sizes"),
               "1 for each run that is not UTF-8.");
    module.def("text_pack", text_pack, nb::arg("rows"), nb::arg("parts"), nb::arg("json"), nb::arg("delimiter"),
               nb::arg("before"), nb::arg("after"), R"(Write rows of CSV or JSON from columns: data and offsets.

A part is (key, mode, kind, size, data, starts, sizes, inner axes, omit); native/text/text.hpp says
what they mean.)");
}

}  // namespace batchplant
