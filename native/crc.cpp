#include "crc.hpp"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <sys/auxv.h>
// Old C libraries lack <asm/hwcap.h>'s newer names; this bit is part of the kernel's ABI.
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif

namespace batchplant {
namespace {

using Update = uint32_t (*)(uint32_t, const uint8_t*, size_t);

struct Implementation {
    Update update;
    const char* name;
};

uint64_t load64(const uint8_t* p) {
    uint64_t value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
    constexpr uint32_t reversed_polynomial = 0x82F63B78;
    Tables tables{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? reversed_polynomial : 0);
        tables[0][byte] = crc;
    }
    for (size_t t = 1; t < 8; ++t) {
        for (size_t byte = 0; byte < 256; ++byte) {
            uint32_t before = tables[t - 1][byte];
            tables[t][byte] = (before >> 8) ^ tables[0][before & 0xFF];
        }
    }
    return tables;
}

constexpr Tables tables = make_tables();

uint32_t update_portable(uint32_t crc, const uint8_t* p, size_t size) {
    static_assert(std::endian::native == std::endian::little, "the eight-byte step assumes little-endian loads");
    for (; size >= 8; size -= 8, p += 8) {
        uint64_t x = load64(p) ^ crc;
        crc = tables[7][x & 0xFF] ^ tables[6][(x >> 8) & 0xFF] ^ tables[5][(x >> 16) & 0xFF] ^
              tables[4][(x >> 24) & 0xFF] ^ tables[3][(x >> 32) & 0xFF] ^ tables[2][(x >> 40) & 0xFF] ^
              tables[1][(x >> 48) & 0xFF] ^ tables[0][x >> 56];
    }
    for (; size > 0; --size, ++p) crc = (crc >> 8) ^ tables[0][(crc ^ *p) & 0xFF];
    return crc;
}

#if defined(__x86_64__)

__attribute__((target("sse4.2"))) uint32_t update_hardware(uint32_t crc, const uint8_t* p, size_t size) {
    uint64_t wide = crc;
    for (; size >= 8; size -= 8, p += 8) wide = _mm_crc32_u64(wide, load64(p));
    crc = static_cast<uint32_t>(wide);
    for (; size > 0; --size, ++p) crc = _mm_crc32_u8(crc, *p);
    return crc;
}

Implementation choose() {
    if (__builtin_cpu_supports("sse4.2")) return {update_hardware, "sse4.2"};
    return {update_portable, "slicing-by-8"};
}

#elif defined(__aarch64__) && defined(__linux__)

#if defined(__clang__)
#define BATCHPLANT_TARGET_CRC __attribute__((target("crc")))
#else
#define BATCHPLANT_TARGET_CRC __attribute__((target("+crc")))
#endif

BATCHPLANT_TARGET_CRC uint32_t update_hardware(uint32_t crc, const uint8_t* p, size_t size) {
    for (; size >= 8; size -= 8, p += 8) crc = __crc32cd(crc, load64(p));
    for (; size > 0; --size, ++p) crc = __crc32cb(crc, *p);
    return crc;
}

Implementation choose() {
    if (getauxval(AT_HWCAP) & HWCAP_CRC32) return {update_hardware, "armv8"};
    return {update_portable, "slicing-by-8"};
}

#else

Implementation choose() { return {update_portable, "slicing-by-8"}; }

#endif

const Implementation& chosen() {
    static const Implementation implementation = choose();
    return implementation;
}

}  // namespace

uint32_t crc32c(const uint8_t* data, size_t size, uint32_t seed) { return ~chosen().update(~seed, data, size); }

uint32_t crc32c_portable(const uint8_t* data, size_t size, uint32_t seed) {
    return ~update_portable(~seed, data, size);
}

const char* crc32c_name() { return chosen().name; }

}  // namespace batchplant
