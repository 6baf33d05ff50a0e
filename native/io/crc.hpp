#pragma once

#include <cstddef>
#include <cstdint>

namespace batchplant {

// CRC-32C (Castagnoli). Passing an earlier result as `seed` continues it over the next bytes.
uint32_t crc32c(const uint8_t* data, size_t size, uint32_t seed = 0);

// CRC-32C of bytes that are copied to `dst` on the way, which costs less than one after the other.
uint32_t crc32c_copy(const uint8_t* data, size_t size, uint8_t* dst);

// The portable implementation, reachable by name so that tests can compare it with the hardware's.
uint32_t crc32c_portable(const uint8_t* data, size_t size, uint32_t seed = 0);

// The implementation that this machine uses: "sse4.2", "armv8" or "slicing-by-8".
const char* crc32c_name();

// CRC-32 of zlib, PNG and Ethernet, with the same `seed`. libdeflate computes it; a build without that library uses
// tables, which are several times slower.
uint32_t crc32(const uint8_t* data, size_t size, uint32_t seed = 0);
uint32_t crc32_copy(const uint8_t* data, size_t size, uint8_t* dst);

// The implementation of this build: "libdeflate" or "slicing-by-8".
const char* crc32_name();

}  // namespace batchplant
