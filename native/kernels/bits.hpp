// A set of small numbers that finds the next one in a few steps, however far it is.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace batchplant {

class Bits {
public:
    // An empty set of numbers below `size`.
    explicit Bits(size_t size) {
        for (; levels_.empty() || size > 1; levels_.emplace_back(size, 0)) size = (size + 63) / 64;
    }

    void set(size_t at) {
        for (auto& level : levels_) {
            const bool known = level[at / 64] != 0;
            level[at / 64] |= uint64_t{1} << at % 64;
            if (known) break;
            at /= 64;
        }
    }

    void clear(size_t at) {
        for (auto& level : levels_) {
            level[at / 64] &= ~(uint64_t{1} << at % 64);
            if (level[at / 64]) break;
            at /= 64;
        }
    }

    // The smallest at or after this one, or -1.
    int64_t next(size_t at) const {
        for (size_t level = 0; level < levels_.size(); ++level) {
            if (at / 64 >= levels_[level].size()) return -1;
            const uint64_t left = levels_[level][at / 64] >> at % 64;
            if (left) {
                at += static_cast<size_t>(std::countr_zero(left));
                while (level > 0) at = at * 64 + static_cast<size_t>(std::countr_zero(levels_[--level][at]));
                return static_cast<int64_t>(at);
            }
            at = at / 64 + 1;
        }
        return -1;
    }

private:
    // Each says which words of the one before are not 0.
    std::vector<std::vector<uint64_t>> levels_;
};

}  // namespace batchplant
