#include "../records/example.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>
#include <utility>

#include "../io/bytes.hpp"
#include "bind.hpp"

namespace batchplant {
namespace {

using Wish = std::tuple<nb::bytes, bool, int>;
using Source = std::tuple<nb::bytes, int, Bytes, Int64s, Int64s, std::optional<Int64s>>;

template <typename T>
using Array = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

// The vector's memory as an array, without a copy.
template <typename T>
Array<T> array_of(std::vector<T>&& values) {
    auto* held = new std::vector<T>(std::move(values));
    nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    if (held->empty()) held->reserve(1);  // an array may not lie nowhere
    return Array<T>(held->data(), {held->size()}, owner);
}

std::string text_of(const nb::bytes& name) { return std::string(name.c_str(), name.size()); }

ExampleKind kind_of(int kind, int least) {
    if (kind < least || kind > 3) throw std::invalid_argument("a kind is 1 bytes, 2 floats or 3 ints");
    return static_cast<ExampleKind>(kind);
}

void check_runs(const Bytes& data, const Int64s& starts, const Int64s& sizes) {
    check_same_length(starts, "starts", sizes, "sizes");
    const int64_t bad = first_bad_run(starts.data(), sizes.data(), starts.size(), data.size());
    if (bad >= 0) throw_bad_run(bad);
}

ExampleBatch read_unlocked(const Bytes& data, const Int64s& starts, const Int64s& sizes,
                           const std::vector<ExampleWish>& wishes) {
    nb::gil_scoped_release unlocked;
    check_runs(data, starts, sizes);
    return read_examples(data.data(), starts.data(), sizes.data(), starts.size(), wishes);
}

nb::tuple read(const Bytes& data, const Int64s& starts, const Int64s& sizes, const std::vector<Wish>& wanted) {
    std::vector<ExampleWish> wishes;
    for (const auto& [name, list, kind] : wanted) wishes.push_back({text_of(name), list, kind_of(kind, 0)});
    ExampleBatch batch = read_unlocked(data, starts, sizes, wishes);
    nb::list columns;
    for (ExampleColumn& column : batch.columns) {
        columns.append(nb::make_tuple(array_of(std::move(column.kind)), array_of(std::move(column.count)),
                                      array_of(std::move(column.steps)), array_of(std::move(column.runs)),
                                      array_of(std::move(column.floats)), array_of(std::move(column.ints))));
    }
    return nb::make_tuple(columns, batch.bad_row, batch.bad_at);
}

int64_t add(ExampleSurvey& survey, const Bytes& data, const Int64s& starts, const Int64s& sizes) {
    nb::gil_scoped_release unlocked;
    check_runs(data, starts, sizes);
    return survey.add(data.data(), starts.data(), sizes.data(), starts.size());
}

nb::list features(const ExampleSurvey& survey) {
    nb::list found;
    for (const ExampleFeature& one : survey.features()) {
        found.append(nb::make_tuple(nb::bytes(one.name.data(), one.name.size()), one.list, one.kinds, one.present,
                                    one.fewest, one.most, one.step_fewest, one.step_most, one.other));
    }
    return found;
}

ExampleSource source_of(size_t n, const Source& given) {
    const auto& [name, kind, data, starts, sizes, counts] = given;
    check_same_length(starts, "starts", sizes, "sizes");
    ExampleSource source{text_of(name), kind_of(kind, 1), data.data(), starts.data(), sizes.data(), nullptr};
    size_t runs = counts ? 0 : n;
    if (counts) {
        if (source.kind != ExampleKind::bytes) throw std::invalid_argument("only bytes have counts");
        if (counts->size() != n) throw std::invalid_argument("there must be a count for each record");
        source.counts = counts->data();
        for (size_t i = 0; i < n; ++i) {
            const int64_t count = source.counts[i];
            if (count > static_cast<int64_t>(starts.size() - runs)) throw std::invalid_argument("the counts exceed the runs");
            runs += count > 0 ? static_cast<size_t>(count) : 0;
        }
    }
    if (starts.size() != runs) throw std::invalid_argument("the runs do not fit the records");
    const int64_t width = source.kind == ExampleKind::bytes ? 1 : source.kind == ExampleKind::floats ? 4 : 8;
    for (size_t r = 0; r < runs; ++r) {
        if (source.sizes[r] == -1 && !counts) continue;
        if (!run_fits(source.starts[r], source.sizes[r], data.size()) || source.sizes[r] % width != 0) {
            throw_bad_run(static_cast<int64_t>(r));
        }
    }
    return source;
}

std::vector<uint8_t> write_unlocked(std::vector<ExampleSource> sources, size_t n, std::vector<int64_t>& offsets) {
    nb::gil_scoped_release unlocked;
    offsets.resize(n + 1);
    return write_examples(std::move(sources), n, offsets.data());
}

nb::tuple write(size_t n, const std::vector<Source>& given) {
    std::vector<ExampleSource> sources;
    for (const Source& one : given) sources.push_back(source_of(n, one));
    std::vector<int64_t> offsets;
    std::vector<uint8_t> data = write_unlocked(std::move(sources), n, offsets);
    return nb::make_tuple(array_of(std::move(data)), array_of(std::move(offsets)));
}

}  // namespace

void bind_example(nb::module_& module) {
    module.def("example_read", read, nb::arg("data").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), nb::arg("wishes"), "The values of features in serialized Examples.");
    module.def("example_write", write, nb::arg("n"), nb::arg("sources"), "Serialized Examples, one for each record.");
    nb::class_<ExampleSurvey>(module, "ExampleSurvey", "Which features serialized Examples have.")
        .def(nb::init<>())
        .def("add", add, nb::arg("data").noconvert(), nb::arg("starts").noconvert(), nb::arg("sizes").noconvert(),
             "Take in records; the first that is no Example, which is not counted, or -1.")
        .def("skip", &ExampleSurvey::skip, "Count a record without looking at it.")
        .def("features", features, "Name, list, kinds, present, fewest, most, step_fewest, step_most, other.")
        .def_ro("records", &ExampleSurvey::records)
        .def_ro("unknown", &ExampleSurvey::unknown)
        .def_ro("foreign", &ExampleSurvey::foreign);
}

}  // namespace batchplant
