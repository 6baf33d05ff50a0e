#include "parquet.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace batchplant::parquet {
namespace {

// Numbers are packed in groups of 8, which fill as many bytes as a number has bits.
constexpr size_t group = 8;

inline uint64_t load(const uint8_t* data, size_t bytes) {
    uint64_t word = 0;
    std::memcpy(&word, data, bytes);
    return word;
}

// Calls run(value, count) and packed(data, count) in turn, for `count` numbers in all; false where they end too early,
// or either says so. `data` has as many groups as `count` needs.
template <typename Run, typename Side>
bool walk(Packed data, int width, size_t count, Run run, Side packed) {
    const size_t bytes = (static_cast<size_t>(width) + 7) / 8, group_bytes = static_cast<size_t>(width);
    const uint8_t* at = data.data();
    const uint8_t* const end = at + data.size();
    while (count > 0) {
        uint64_t head = 0;
        for (int shift = 0;; shift += 7) {
            if (at == end || shift > 28) return false;
            head |= static_cast<uint64_t>(*at & 0x7f) << shift;
            if (!(*at++ & 0x80)) break;
        }
        const size_t many = head >> 1;
        if (many == 0) return false;
        if (head & 1) {
            const size_t taken = std::min(many, (count + group - 1) / group), size = many * group_bytes;
            if (size > static_cast<size_t>(end - at)) return false;
            const size_t here = std::min(count, taken * group);
            if (!packed(at, here)) return false;
            at += size;
            count -= here;
        } else {
            if (bytes > static_cast<size_t>(end - at)) return false;
            const size_t here = std::min(count, many);
            if (!run(static_cast<uint32_t>(load(at, bytes)), here)) return false;
            at += bytes;
            count -= here;
        }
    }
    return true;
}

// So many numbers fill a word of at most 64 bits, and end where a group ends.
constexpr size_t in_word(int width) { return 8 / static_cast<size_t>(width) * group; }

// A word of such numbers, all the same.
constexpr uint64_t repeated(int width, uint64_t value) {
    uint64_t word = 0;
    for (size_t i = 0; i < in_word(width); ++i) word |= value << (i * static_cast<size_t>(width));
    return word;
}

// Calls each(first, word, used) for the words that numbers side by side are in; false where it says so. `used` has the
// bits of those that count.
template <int width, typename Each>
bool each_word(const uint8_t* data, size_t count, Each each) {
    constexpr size_t step = in_word(width), bytes = step * width / 8;
    for (size_t first = 0; first < count; first += step, data += bytes) {
        const size_t here = std::min(step, count - first), bits = here * width;
        // The last group is whole even where not all of its numbers count.
        const uint64_t word = here == step ? load(data, bytes) : load(data, (here + group - 1) / group * width);
        if (!each(first, word, bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1)) return false;
    }
    return true;
}

// The lowest bit of every number that is not 0.
template <int width>
uint64_t lowest(uint64_t word) {
    uint64_t any_bit = word;
    for (int bit = 1; bit < width; ++bit) any_bit |= word >> bit;
    return any_bit & repeated(width, 1);
}

template <int width>
bool words_are(const uint8_t* data, size_t count, uint32_t value) {
    const uint64_t same = repeated(width, value);
    return each_word<width>(data, count,
                            [&](size_t, uint64_t word, uint64_t used) { return ((word ^ same) & used) == 0; });
}

}  // namespace

bool all_are(Packed data, int width, size_t count, uint32_t value) {
    return walk(
        data, width, count, [&](uint32_t number, size_t) { return number == value; },
        [&](const uint8_t* numbers, size_t n) {
            switch (width) {
                case 1: return words_are<1>(numbers, n, value);
                case 2: return words_are<2>(numbers, n, value);
                case 3: return words_are<3>(numbers, n, value);
                case 4: return words_are<4>(numbers, n, value);
                default: return false;
            }
        });
}

bool Lists::begin_outer(size_t innermost, size_t level) {
    const size_t depth = offsets_.size();
    if (level >= depth) return false;
    for (size_t d = depth - 1; d > level; --d) {
        offsets_[d - 1].push_back(static_cast<int32_t>(d + 1 == depth ? innermost : offsets_[d].size() - 1));
    }
    return true;
}

template <int width>
bool Lists::add_words(const uint8_t* levels, size_t count, size_t value) {
    constexpr uint64_t one = (uint64_t{1} << width) - 1;
    const size_t depth = offsets_.size();
    const uint64_t inside = repeated(width, depth), innermost = repeated(width, depth - 1);
    std::vector<int32_t>& starts = offsets_.back();
    return each_word<width>(levels, count, [&](size_t first, uint64_t word, uint64_t used) {
        const uint64_t begins = lowest<width>(word ^ inside) & used;
        uint64_t outer = lowest<width>(word ^ innermost) & begins;
        const size_t before = starts.size();
        starts.resize(before + static_cast<size_t>(std::popcount(begins)));
        int32_t* to = starts.data() + before;
        for (uint64_t left = begins; left != 0; left &= left - 1) {
            *to++ = static_cast<int32_t>(value + first + static_cast<size_t>(std::countr_zero(left)) / width);
        }
        // Few lists begin others too.
        for (; outer != 0; outer &= outer - 1) {
            const int bit = std::countr_zero(outer);
            const int earlier = std::popcount(begins & ((uint64_t{1} << bit) - 1));
            if (!begin_outer(before + static_cast<size_t>(earlier), word >> bit & one)) return false;
        }
        return true;
    });
}

template <int width>
bool Lists::add_repetition(Packed levels, size_t count) {
    const size_t depth = offsets_.size();
    size_t value = values_;
    return walk(
        levels, width, count,
        [&](uint32_t level, size_t n) {
            // The very first value begins a list.
            if (level > depth || (value == 0 && level != 0)) return false;
            const size_t end = value + n;
            for (; level < depth && value < end; ++value) {
                offsets_.back().push_back(static_cast<int32_t>(value));
                if (!begin_outer(offsets_.back().size() - 1, level)) return false;
            }
            value = end;
            return true;
        },
        [&](const uint8_t* numbers, size_t n) {
            if (value == 0 && (numbers[0] & ((1u << width) - 1)) != 0) return false;
            value += n;
            return add_words<width>(numbers, n, value - n);
        });
}

bool Lists::add(Packed repetition, Packed definition, int present, size_t count) {
    constexpr size_t most = std::numeric_limits<int32_t>::max();
    if (count > most - values_) return false;
    const auto definition_width = static_cast<int>(std::bit_width(static_cast<unsigned>(present)));
    if (!all_are(definition, definition_width, count, static_cast<uint32_t>(present))) return false;
    bool good = false;
    switch (std::bit_width(offsets_.size())) {
        case 1: good = add_repetition<1>(repetition, count); break;
        case 2: good = add_repetition<2>(repetition, count); break;
        case 3: good = add_repetition<3>(repetition, count); break;
        default: break;
    }
    values_ += count;
    return good;
}

std::vector<std::vector<int32_t>> Lists::offsets() && {
    for (size_t d = 0; d < offsets_.size(); ++d) {
        offsets_[d].push_back(static_cast<int32_t>(d + 1 == offsets_.size() ? values_ : offsets_[d + 1].size()));
    }
    return std::move(offsets_);
}

template <typename T>
bool look_up(Packed data, int width, std::span<const T> dictionary, std::span<T> out) {
    if (width < 0 || width > 32) return false;
    T* to = out.data();
    const uint64_t one = (uint64_t{1} << width) - 1;
    return walk(
        data, width, out.size(),
        [&](uint32_t number, size_t n) {
            if (number >= dictionary.size()) return false;
            to = std::fill_n(to, n, dictionary[number]);
            return true;
        },
        [&](const uint8_t* numbers, size_t n) {
            const auto each = [&](auto number_at) {
                if (one < dictionary.size()) {
                    for (size_t i = 0; i < n; ++i) to[i] = dictionary[number_at(i)];
                    to += n;
                    return true;
                }
                for (size_t i = 0; i < n; ++i) {
                    const size_t number = number_at(i);
                    if (number >= dictionary.size()) return false;
                    *to++ = dictionary[number];
                }
                return true;
            };
            if (width == 0) return each([](size_t) { return size_t{0}; });
            if (width == 8) return each([&](size_t i) { return size_t{numbers[i]}; });
            const size_t bytes = (n + group - 1) / group * static_cast<size_t>(width);
            return each([&](size_t i) {
                const size_t bit = i * static_cast<size_t>(width), byte = bit / 8, left = bytes - byte;
                const uint64_t word = left >= 8 ? load(numbers + byte, 8) : load(numbers + byte, left);
                return static_cast<size_t>(word >> (bit % 8) & one);
            });
        });
}

template bool look_up(Packed, int, std::span<const uint8_t>, std::span<uint8_t>);
template bool look_up(Packed, int, std::span<const uint16_t>, std::span<uint16_t>);
template bool look_up(Packed, int, std::span<const uint32_t>, std::span<uint32_t>);
template bool look_up(Packed, int, std::span<const uint64_t>, std::span<uint64_t>);

}  // namespace batchplant::parquet
