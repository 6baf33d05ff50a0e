#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace batchplant {

// tf.train.Example and SequenceExample, protobuf messages:
//
//   Example          1: Features                           Features      1: map<string, Feature>
//   SequenceExample  1: Features, 2: FeatureLists          FeatureLists  1: map<string, FeatureList>
//   Feature          1: BytesList, 2: FloatList, 3: Int64List, one of them; each of them 1: the values
//   FeatureList      1: Feature, repeated: the steps
//
// An Example is a SequenceExample without lists, so one parser does for both. As with any protobuf message a part
// that comes twice is merged, the last of two equal keys counts, unknown fields are skipped, and numbers may come
// packed or one by one.

// The numbers are part of the Python API (batchplant._native.example_read): append, never renumber.
enum class ExampleKind : int8_t { none = 0, bytes = 1, floats = 2, ints = 3, mixed = 4 };

struct ExampleRequest {
    std::string name;
    bool list = false;                     // one of the feature lists
    ExampleKind kind = ExampleKind::none;  // none: whatever is there
};

struct ExampleColumn {
    std::vector<int8_t> kind;    // for each record the ExampleKind that is there
    std::vector<int64_t> count;  // values, or steps of a list; -1: there is no such feature
    std::vector<int64_t> steps;  // of lists, the values of each step
    std::vector<int64_t> runs;   // start and size of each bytes value
    std::vector<float> floats;
    std::vector<int64_t> ints;
};

struct ExampleBatch {
    std::vector<ExampleColumn> columns;
    int64_t bad_row = -1;  // the first record that is no Example, or -1
    int64_t bad_at = 0;    // where in the data
};

// The values of these features in n records, which lie in the data (the caller has checked). Values of another kind
// than asked for are counted, and left out.
ExampleBatch read_examples(const uint8_t* data, const int64_t* starts, const int64_t* sizes, size_t n,
                           const std::vector<ExampleRequest>& requests);

struct ExampleFeature {
    std::string name;
    bool list = false;
    uint32_t kinds = 0;  // bit k: kind k was there
    int64_t present = 0;
    int64_t fewest = -1, most = -1;            // values, or steps of a list, where it is present
    int64_t step_fewest = -1, step_most = -1;  // values of a step
    ExampleKind first = ExampleKind::none;
    int64_t other = -1;  // the first record with another kind than the first
};

// Finds the features of records. A million invented names must not take a million times the memory of one.
class ExampleSurvey {
public:
    static constexpr size_t most_names = 10'000;

    ExampleSurvey();
    ~ExampleSurvey();

    // Takes in n records, which lie in the data; stops at the first that is no Example (or has one name too many),
    // and returns its row, else -1. The row is not counted, and may be skipped.
    int64_t add(const uint8_t* data, const int64_t* starts, const int64_t* sizes, size_t n);
    void skip() { ++records; }

    std::vector<ExampleFeature> features() const;  // sorted by name, lists last
    int64_t records = 0;
    int64_t unknown = 0;  // fields that are not part of these messages
    int64_t foreign = 0;  // records that have such fields, and no feature

private:
    struct State;
    std::unique_ptr<State> state_;
};

// A feature to write: for each record a run of bytes, -1 where it has none. Bytes: one value. Floats: float32.
// Ints: int64.
struct ExampleSource {
    std::string name;
    ExampleKind kind = ExampleKind::none;
    const uint8_t* data = nullptr;
    const int64_t* starts = nullptr;
    const int64_t* sizes = nullptr;
    // Bytes only: how many runs each record has (-1: none, not even an empty list). Null: one each.
    const int64_t* counts = nullptr;
};

// n Examples, one after another, keys in order of their bytes; offsets has n + 1 places. All runs lie in their data.
// throws std::length_error where an Example would exceed what protobuf holds, 2 GiB.
std::vector<uint8_t> write_examples(std::vector<ExampleSource> sources, size_t n, int64_t* offsets);

}  // namespace batchplant
