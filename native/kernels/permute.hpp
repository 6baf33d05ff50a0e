#pragma once

#include <cstddef>
#include <cstdint>

namespace batchplant {

constexpr uint64_t golden_ratio = 0x9E3779B97F4A7C15;

// The finaliser of splitmix64.
inline uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9;
    x ^= x >> 27;
    x *= 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

// Keyed permutations without memory: where a number of [0, count) goes in the permutation that the key chooses.
// The arithmetic is part of the promise that an epoch is the same on every machine and in every version.
int64_t permute(int64_t at, uint64_t count, uint64_t key);

// The number that goes there.
int64_t unpermute(int64_t to, uint64_t count, uint64_t key);

}  // namespace batchplant
