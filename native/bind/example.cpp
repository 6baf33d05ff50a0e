#include "../records/example.hpp"

#include "bind.hpp"

namespace batchplant {
namespace {

using Request = std::tuple<nb::bytes, bool, int>;
// For each feature: kinds and counts by record, counts by step, then values: runs of bytes, floats, ints.
using Column = std::tuple<Array<int8_t>, Array<int64_t>, Array<int64_t>, Array<int64_t>, Array<float>, Array<int64_t>>;
using Feature = std::tuple<nb::bytes, bool, uint32_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>;
using Source = std::tuple<nb::bytes, int, Bytes, Int64s, Int64s, std::optional<Int64s>>;

ExampleKind kind_of(int kind, int least) {
    if (kind < least || kind > 3) throw std::invalid_argument("a kind is 1 bytes, 2 floats or 3 ints");
    return static_cast<ExampleKind>(kind);
}

ExampleBatch read_unlocked(const Bytes& data, const Int64s& starts, const Int64s& sizes,
                           const std::vector<ExampleRequest>& requests) {
    nb::gil_scoped_release unlocked;
    check_runs(starts, sizes, data.size());
    return read_examples(data.data(), starts.data(), sizes.data(), starts.size(), requests);
}

std::tuple<std::vector<Column>, int64_t, int64_t> read(const Bytes& data, const Int64s& starts, const Int64s& sizes,
                                                       const std::vector<Request>& wanted) {
    std::vector<ExampleRequest> requests;
    for (const auto& [name, list, kind] : wanted) requests.push_back({string_of(name), list, kind_of(kind, 0)});
    ExampleBatch batch = read_unlocked(data, starts, sizes, requests);
    std::vector<Column> columns;
    for (ExampleColumn& column : batch.columns) {
        columns.emplace_back(array_of(std::move(column.kind)), array_of(std::move(column.count)),
                             array_of(std::move(column.steps)), array_of(std::move(column.runs)),
                             array_of(std::move(column.floats)), array_of(std::move(column.ints)));
    }
    return {std::move(columns), batch.bad_row, batch.bad_at};
}

int64_t add(ExampleSurvey& survey, const Bytes& data, const Int64s& starts, const Int64s& sizes) {
    nb::gil_scoped_release unlocked;
    check_runs(starts, sizes, data.size());
    return survey.add(data.data(), starts.data(), sizes.data(), starts.size());
}

std::vector<Feature> features(const ExampleSurvey& survey) {
    std::vector<Feature> features;
    for (const ExampleFeature& feature : survey.features()) {
        features.emplace_back(nb::bytes(feature.name.data(), feature.name.size()), feature.list, feature.kinds,
                              feature.present, feature.fewest, feature.most, feature.step_fewest, feature.step_most,
                              feature.other);
    }
    return features;
}

ExampleSource source_of(size_t n, const Source& given) {
    const auto& [name, kind, data, starts, sizes, counts] = given;
    check_same_length(starts, "starts", sizes, "sizes");
    ExampleSource source{string_of(name), kind_of(kind, 1), data.data(), starts.data(), sizes.data(), nullptr};
    size_t runs = counts ? 0 : n;
    if (counts) {
        if (source.kind != ExampleKind::bytes) throw std::invalid_argument("only bytes have counts");
        if (counts->size() != n) throw std::invalid_argument("there must be a count for each record");
        source.counts = counts->data();
        for (size_t i = 0; i < n; ++i) {
            const int64_t count = source.counts[i];
            if (count > static_cast<int64_t>(starts.size() - runs))
                throw std::invalid_argument("the counts exceed the runs");
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

std::tuple<Array<uint8_t>, Array<int64_t>> write(size_t n, const std::vector<Source>& given) {
    std::vector<ExampleSource> sources;
    for (const Source& one : given) sources.push_back(source_of(n, one));
    std::vector<int64_t> offsets;
    std::vector<uint8_t> data = write_unlocked(std::move(sources), n, offsets);
    return {array_of(std::move(data)), array_of(std::move(offsets))};
}

}  // namespace

void bind_example(nb::module_& module) {
    module.def("example_read", read, array_arg("data"), array_arg("starts"), array_arg("sizes"), nb::arg("features"),
               R"(Read the values of features in serialized tf.train.Examples or SequenceExamples.

A feature is a name, whether it is one of the feature lists, and a kind: 1 bytes, 2 float, 3 int64, 0
any. For each come six arrays: kind of each record (0 none, 4 several); count of values or, of a
list, steps of each record, -1 where the feature is missing; of lists the count of values of each
step; then the values, one after another: of bytes start and size in data in turn, of floats float32,
of ints int64. Values of another kind than asked for are counted and left out.

Last come the first record that is no Example, or -1, and where in data it is wrong.)");
    module.def("example_write", write, nb::arg("n"), nb::arg("sources"),
               R"(Write n serialized tf.train.Examples, and their n + 1 offsets; keys in order of bytes.

A source is a name, a kind, and runs of data, one for each record, -1 where it lacks the feature: one
bytes value, or float32s, or int64s. With counts, of bytes only, record i has counts[i] runs, each a
value; -1 where it lacks the feature.)");
    nb::class_<ExampleSurvey>(module, "ExampleSurvey",
                              "Finds which features serialized Examples have; not for several threads at once.")
        .def(nb::init<>())
        .def("add", add, array_arg("data"), array_arg("starts"), array_arg("sizes"),
             "Take in records. -1, or the first that is no Example: it and those behind it are not counted.")
        .def("skip", &ExampleSurvey::skip, "Count a record without reading it.")
        .def("features", features, R"(What is known of each feature, as a tuple.

Name, whether it is a feature list, bits of the kinds it had, how many records have it, fewest and
most values (or steps), fewest and most values of a step (-1: none), first record of another kind.)")
        .def_ro("records", &ExampleSurvey::records, "Number of records that were read or skipped.")
        .def_ro("unknown", &ExampleSurvey::unknown, "Number of parts that do not belong to these messages.")
        .def_ro("foreign", &ExampleSurvey::foreign, "Number of records that have such parts and no feature.");
}

}  // namespace batchplant
