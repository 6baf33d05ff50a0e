#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "permute.hpp"

// The sample at a position of an epoch. Each of these is a function of one position, with what it goes by inside; all
// of the arithmetic is part of the promise that an epoch is the same on every machine and in every version.
namespace batchplant {

// Beyond, the products of permute would not fit 64 bits.
constexpr uint64_t longest_order = uint64_t{1} << 48;

inline void check_below(int64_t at, uint64_t count) {
    if (at >= 0 && count <= longest_order && static_cast<uint64_t>(at) < count) return;
    throw std::invalid_argument(std::to_string(at) + " is not below " + std::to_string(count));
}

// A key of its own for each number.
inline uint64_t derived(uint64_t key, int64_t number) {
    return mix(key + (static_cast<uint64_t>(number) + 1) * golden_ratio);
}

// Everything shuffled.
struct Shuffle {
    uint64_t count, key;
    bool back;

    int64_t operator()(int64_t at) const {
        check_below(at, count);
        return back ? unpermute(at, count, key) : permute(at, count, key);
    }
};

// Runs of `size` shuffled, once for each phase: where the borders between runs lie.
struct Runs {
    int64_t count, size;
    const std::vector<int64_t>& phases;
    uint64_t key;

    int64_t operator()(int64_t at) const {
        check_below(at, static_cast<uint64_t>(count));
        uint64_t own = key;
        for (const int64_t phase : phases) {
            own = mix(own + 1);
            // The run before the first border is number -1.
            const int64_t run = at < phase ? -1 : (at - phase) / size;
            const int64_t first = std::max<int64_t>(run * size + phase, 0);
            const int64_t last = std::min(run * size + phase + size, count);
            at = first + permute(at - first, static_cast<uint64_t>(last - first), derived(own, run));
        }
        return at;
    }
};

// Ascending borders from 0 on, and which two of them a number lies between.
class Borders {
public:
    Borders(const int64_t* values, size_t count) : values_(values), count_(count) {}

    size_t operator()(int64_t at) const {
        if (count_ < 2 || at < values_[0] || at >= values_[count_ - 1]) {
            throw std::invalid_argument(std::to_string(at) + " lies between no borders");
        }
        // Positions are mostly asked for one after another.
        if (at < values_[last_] || at >= values_[last_ + 1]) {
            last_ = static_cast<size_t>(std::upper_bound(values_, values_ + count_, at) - values_) - 1;
        }
        return last_;
    }
    int64_t operator[](size_t border) const { return values_[border]; }
    size_t size() const { return count_; }

private:
    const int64_t* values_;
    size_t count_;
    mutable size_t last_ = 0;
};

// Shuffled between every two borders.
struct Windows {
    Borders edges;
    uint64_t key;

    int64_t operator()(int64_t at) const {
        const size_t window = edges(at);
        const int64_t first = edges[window];
        const uint64_t count = static_cast<uint64_t>(edges[window + 1] - first);
        check_below(at - first, count);
        return first + permute(at - first, count, derived(key, static_cast<int64_t>(window)));
    }
};

// Blocks in the order `turns`, the samples of each as they stand. Turn t begins at position starts[t]; block b at
// firsts[b] of the samples, or of `rows`, where their blocks are scattered.
struct Walk {
    Borders starts;
    const int64_t* turns;
    const int64_t* firsts;
    size_t blocks;
    const int64_t* rows;
    size_t samples;

    int64_t operator()(int64_t at) const {
        const size_t turn = starts(at);
        const int64_t block = turns[turn];
        if (block < 0 || static_cast<size_t>(block) >= blocks) throw std::invalid_argument("there is no such block");
        const int64_t place = firsts[block] + at - starts[turn];
        if (rows == nullptr) return place;
        if (place < 0 || static_cast<size_t>(place) >= samples) throw std::invalid_argument("there is no such row");
        return rows[place];
    }
};

// Parts of `each` positions taken from in turn, `size` at a time. What does not fill all alike stands at the end.
struct Lanes {
    int64_t lanes, size, each;

    int64_t operator()(int64_t at) const {
        if (at >= lanes * each) return at;
        const int64_t step = at / (lanes * size), rest = at % (lanes * size);
        return rest / size * each + step * size + rest % size;
    }
};

}  // namespace batchplant
