#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// Parquet's numbers of few bits (RLE/bit-packed hybrid): runs of one number, and numbers side by side, by turns.

namespace batchplant::parquet {

using Packed = std::span<const uint8_t>;

// Lists of so many levels (1 to 7) need no more bits for each.
constexpr int deepest = 7;

// Lists in lists in which no value is missing and none is empty, page by page: where each begins.
class Lists {
public:
    // `values`: as many as will come, at most. No list is innermost in more than that; memory is taken when it is used.
    Lists(int depth, size_t values) : offsets_(static_cast<size_t>(depth)) { offsets_.back().reserve(values + 1); }

    // A page: the repetition and the definition level of each of `count` values, and the definition level of one that
    // is there. False, and nothing more may be added, where something is missing, or nonsense.
    bool add(Packed repetition, Packed definition, int present, size_t count);

    // For each depth, from outside in: offsets of its lists among those of the next, or among the values.
    std::vector<std::vector<int32_t>> offsets() &&;

    size_t values() const { return values_; }

private:
    template <int width>
    bool add_repetition(Packed levels, size_t count);
    template <int width>
    bool add_words(const uint8_t* levels, size_t count, size_t value);
    // The lists around an innermost one begin too, those below a level.
    bool begin_outer(size_t innermost, size_t level);

    std::vector<std::vector<int32_t>> offsets_;
    size_t values_ = 0;
};

// True if the first `count` numbers of `width` bits are all `value`.
bool all_are(Packed data, int width, size_t count, uint32_t value);

// The entries of a dictionary that numbers of `width` bits name. False where there is no such entry, or too few
// numbers.
template <typename T>
bool look_up(Packed data, int width, std::span<const T> dictionary, std::span<T> out);

}  // namespace batchplant::parquet
