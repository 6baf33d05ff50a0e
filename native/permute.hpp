#pragma once

#include <cstddef>
#include <cstdint>

namespace batchplant {

// Keyed permutations without memory: where a number of [0, count) goes in the permutation that the key chooses.
// The arithmetic is part of the promise that an epoch is the same on every machine and in every version.
int64_t permute(int64_t at, uint64_t count, uint64_t key);

}  // namespace batchplant
