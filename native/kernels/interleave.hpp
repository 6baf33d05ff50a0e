// The sources of a mixture by position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace batchplant {

// One period of a mixture: sum(shares) places, each source in as many of them as its share. source[place] is who comes
// there, turn[place] how often it came before. At every place, each source has come share / period * place times,
// give or take less than 1. Throws std::invalid_argument if a share is below 0 or their sum is not the size of the
// spans.
void interleave(std::span<const int64_t> shares, std::span<uint32_t> source, std::span<uint32_t> turn);

}  // namespace batchplant
