#pragma once

#include <cstddef>
#include <cstdint>

namespace batchplant {

// Undoes PNG's filter `kind` (0 to 4) on a row of `count` bytes, a multiple of `step`, the bytes of a pixel: 1 to 4.
// `above` is the finished row above it. The rows must not overlap. Up to `filter_overrun` bytes behind `row` and
// `above` are read and behind `dst` written.
void unfilter(unsigned kind, const uint8_t* row, const uint8_t* above, uint8_t* dst, size_t count, size_t step);

constexpr size_t filter_overrun = 16;

}  // namespace batchplant
