#pragma once

#include <cstddef>
#include <cstdint>

namespace batchplant {

// CRC-32C (Castagnoli). Passing an earlier result as `seed` continues it over the next bytes.
uint32_t crc32c(const uint8_t* data, size_t size, uint32_t seed = 0);

// Which implementation this machine got: "sse4.2", "armv8" or "slicing-by-8".
const char* crc32c_name();

// The portable implementation, reachable by name so that tests can compare it with the hardware's.
uint32_t crc32c_portable(const uint8_t* data, size_t size, uint32_t seed = 0);

}  // namespace batchplant
