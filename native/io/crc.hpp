#pragma once

#include <cstddef>
#include <cstdint>

namespace batchplant {

// CRC-32C (Castagnoli). Passing an earlier result as `seed` continues it over the next bytes.
uint32_t crc32c(const uint8_t* data, size_t size, uint32_t seed = 0);

// Which implementation this machine got: "sse4.2", "armv8" or "slicing-by-8".
const char* crc32c_name();

// CRC-32 of zlib, PNG and Ethernet; seed as above.
uint32_t crc32(const uint8_t* data, size_t size, uint32_t seed = 0);

// The same, of bytes that are copied to `to` on the way, which costs less than one after the other.
uint32_t crc32c_copy(const uint8_t* data, size_t size, uint8_t* to);
uint32_t crc32_copy(const uint8_t* data, size_t size, uint8_t* to);

// Which implementation this machine got: "pclmul", "armv8" or "slicing-by-8".
const char* crc32_name();

// The portable implementations, reachable by name so that tests can compare them with the hardware's.
uint32_t crc32c_portable(const uint8_t* data, size_t size, uint32_t seed = 0);
uint32_t crc32_portable(const uint8_t* data, size_t size, uint32_t seed = 0);

}  // namespace batchplant
