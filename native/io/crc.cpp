#include "crc.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#ifdef BATCHPLANT_LIBDEFLATE
#include <libdeflate.h>
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#define BATCHPLANT_TARGET_CRC __attribute__((target("sse4.2")))
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <arm_neon.h>
#include <sys/auxv.h>
// Old C libraries lack <asm/hwcap.h>'s newer names; these bits are part of the kernel's ABI.
#ifndef HWCAP_PMULL
#define HWCAP_PMULL (1 << 4)
#endif
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#if defined(__clang__)
#define BATCHPLANT_TARGET_CRC __attribute__((target("crc,aes")))
#else
#define BATCHPLANT_TARGET_CRC __attribute__((target("+crc+crypto")))
#endif
#endif

namespace batchplant {
namespace {

// Polynomials with their bits reversed.
constexpr uint32_t castagnoli = 0x82F63B78;
constexpr uint32_t ethernet = 0xEDB88320;

using Update = uint32_t (*)(uint32_t, const uint8_t*, size_t);
using Copy = uint32_t (*)(uint32_t, const uint8_t*, size_t, uint8_t*);

struct Implementation {
    Update update;
    Copy copy;
    const char* name;
};

uint64_t load64(const uint8_t* p) {
    uint64_t value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables(uint32_t polynomial) {
    Tables tables{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? polynomial : 0);
        tables[0][byte] = crc;
    }
    for (size_t t = 1; t < 8; ++t) {
        for (size_t byte = 0; byte < 256; ++byte) {
            const uint32_t previous = tables[t - 1][byte];
            tables[t][byte] = (previous >> 8) ^ tables[0][previous & 0xFF];
        }
    }
    return tables;
}

template <uint32_t polynomial>
constexpr Tables tables_of = make_tables(polynomial);

// Slicing-by-8: eight table lookups for eight bytes.
template <uint32_t polynomial>
uint32_t update_portable(uint32_t crc, const uint8_t* p, size_t size) {
    static_assert(std::endian::native == std::endian::little, "the eight-byte step assumes little-endian loads");
    constexpr const Tables& tables = tables_of<polynomial>;
    for (; size >= 8; size -= 8, p += 8) {
        const uint64_t x = load64(p) ^ crc;
        crc = tables[7][x & 0xFF] ^ tables[6][(x >> 8) & 0xFF] ^ tables[5][(x >> 16) & 0xFF] ^
              tables[4][(x >> 24) & 0xFF] ^ tables[3][(x >> 32) & 0xFF] ^ tables[2][(x >> 40) & 0xFF] ^
              tables[1][(x >> 48) & 0xFF] ^ tables[0][x >> 56];
    }
    for (; size > 0; --size, ++p) crc = (crc >> 8) ^ tables[0][(crc ^ *p) & 0xFF];
    return crc;
}

// Alternates between checksum and copy, in blocks that stay in the first-level cache: a multiple of the 3 x 1024 bytes
// that update_hardware sums in parallel.
template <Update update>
uint32_t update_and_copy(uint32_t crc, const uint8_t* p, size_t size, uint8_t* dst) {
    constexpr size_t block_bytes = 24 * 1024;
    while (size > 0) {
        const size_t count = std::min(size, block_bytes);
        crc = update(crc, p, count);
        std::memcpy(dst, p, count);
        p += count;
        dst += count;
        size -= count;
    }
    return crc;
}

constexpr Implementation portable_crc32c = {update_portable<castagnoli>, update_and_copy<update_portable<castagnoli>>,
                                            "slicing-by-8"};

#if defined(BATCHPLANT_TARGET_CRC)

// The CRC after `length` more zero bytes: a linear map of its 32 bits, as four lookups.
using Shift = std::array<std::array<uint32_t, 256>, 4>;

template <size_t length>
constexpr Shift make_shift() {
    std::array<uint32_t, 32> bits{};
    for (size_t bit = 0; bit < 32; ++bit) {
        uint32_t crc = uint32_t{1} << bit;
        for (size_t i = 0; i < length; ++i) crc = (crc >> 8) ^ tables_of<castagnoli>[0][crc & 0xFF];
        bits[bit] = crc;
    }
    Shift shift{};
    for (size_t t = 0; t < 4; ++t) {
        for (size_t byte = 0; byte < 256; ++byte) {
            for (size_t bit = 0; bit < 8; ++bit) {
                if (byte >> bit & 1) shift[t][byte] ^= bits[8 * t + bit];
            }
        }
    }
    return shift;
}

template <size_t length>
constexpr Shift shift_of = make_shift<length>();

inline uint32_t apply(const Shift& shift, uint32_t crc) {
    return shift[0][crc & 0xFF] ^ shift[1][(crc >> 8) & 0xFF] ^ shift[2][(crc >> 16) & 0xFF] ^ shift[3][crc >> 24];
}

BATCHPLANT_TARGET_CRC inline uint32_t update_8_bytes(uint32_t crc, uint64_t bytes) {
#if defined(__x86_64__)
    return static_cast<uint32_t>(_mm_crc32_u64(crc, bytes));
#else
    return __crc32cd(crc, bytes);
#endif
}

BATCHPLANT_TARGET_CRC inline uint32_t update_byte(uint32_t crc, uint8_t byte) {
#if defined(__x86_64__)
    return _mm_crc32_u8(crc, byte);
#else
    return __crc32cb(crc, byte);
#endif
}

// The instruction has a latency of two or three cycles but a throughput of one per cycle, so three stretches of
// `length` bytes are summed in parallel and then combined.
template <size_t length>
BATCHPLANT_TARGET_CRC inline uint32_t update_three_stretches(uint32_t crc, const uint8_t*& p, size_t& size) {
    for (; size >= 3 * length; size -= 3 * length, p += 3 * length) {
        uint32_t second = 0, third = 0;
        for (size_t i = 0; i < length; i += 8) {
            crc = update_8_bytes(crc, load64(p + i));
            second = update_8_bytes(second, load64(p + length + i));
            third = update_8_bytes(third, load64(p + 2 * length + i));
        }
        crc = apply(shift_of<length>, crc) ^ second;
        crc = apply(shift_of<length>, crc) ^ third;
    }
    return crc;
}

BATCHPLANT_TARGET_CRC uint32_t update_hardware(uint32_t crc, const uint8_t* p, size_t size) {
    crc = update_three_stretches<1024>(crc, p, size);
    crc = update_three_stretches<128>(crc, p, size);
    for (; size >= 8; size -= 8, p += 8) crc = update_8_bytes(crc, load64(p));
    for (; size > 0; --size, ++p) crc = update_byte(crc, *p);
    return crc;
}

#endif

#if defined(__x86_64__)

Implementation choose_crc32c() {
    if (!__builtin_cpu_supports("sse4.2")) return portable_crc32c;
    return {update_hardware, update_and_copy<update_hardware>, "sse4.2"};
}

#elif defined(BATCHPLANT_TARGET_CRC)

// Folding: 16 bytes are multiplied, without carries, by x to the power of the bits that are skipped, modulo the
// polynomial, and added to the bytes that follow. The result has the same remainder as all of the bytes.
constexpr uint64_t factor(int bits) {
    uint32_t power = 0x80000000;
    for (int bit = 0; bit < bits; ++bit) power = (power >> 1) ^ ((power & 1) ? castagnoli : 0);
    return uint64_t{power} << 1;
}

BATCHPLANT_TARGET_CRC inline uint8x16_t fold(uint8x16_t value, poly64x2_t factors, uint8x16_t next) {
    const poly64x2_t halves = vreinterpretq_p64_u8(value);
    const poly64_t half = vgetq_lane_p64(halves, 0), factor = vgetq_lane_p64(factors, 0);
    const uint8x16_t low = vreinterpretq_u8_p128(vmull_p64(half, factor));
    const uint8x16_t high = vreinterpretq_u8_p128(vmull_high_p64(halves, factors));
    return veorq_u8(veorq_u8(low, high), next);
}

// The CRC instruction and the folding run on different execution units, so both are kept busy: three stretches of
// every block use the instruction, the last one folds. With `copying`, the bytes go to `dst` as well and the next block
// is prefetched, so that the memory latency is paid once, not for the checksum and again for the copy.
template <bool copying>
BATCHPLANT_TARGET_CRC inline uint32_t update_blocks(uint32_t crc, const uint8_t*& p, size_t& size, uint8_t*& dst) {
    constexpr size_t steps = 8, length = 16 * steps, folded = 64 * steps, block = 3 * length + folded;
    // Factors of the lower and the upper half of 16 bytes, over a distance of 64 and of 16 bytes.
    constexpr uint64_t low_64 = factor(512 + 32), high_64 = factor(512 - 32);
    constexpr uint64_t low_16 = factor(128 + 32), high_16 = factor(128 - 32);
    const poly64x2_t by_64 = vcombine_p64(vcreate_p64(low_64), vcreate_p64(high_64));
    const poly64x2_t by_16 = vcombine_p64(vcreate_p64(low_16), vcreate_p64(high_16));
    for (; size >= block; size -= block, p += block) {
        const bool prefetching = copying && size >= 2 * block;
        uint32_t sums[3] = {crc, 0, 0};
        uint8x16_t lanes[4] = {};
        for (size_t step = 0; step < steps; ++step) {
            for (size_t lane = 0; lane < 4; ++lane) {
                const size_t at = 3 * length + 64 * step + 16 * lane;
                const uint8x16_t bytes = vld1q_u8(p + at);
                lanes[lane] = fold(lanes[lane], by_64, bytes);
                if constexpr (copying) vst1q_u8(dst + at, bytes);
            }
            for (size_t stretch = 0; stretch < 3; ++stretch) {
                const size_t at = stretch * length + 16 * step;
                const uint64_t bytes[2] = {load64(p + at), load64(p + at + 8)};
                sums[stretch] = update_8_bytes(update_8_bytes(sums[stretch], bytes[0]), bytes[1]);
                if constexpr (copying) {
                    std::memcpy(dst + at, bytes, sizeof bytes);
                    if (prefetching && step % 4 == 0) __builtin_prefetch(p + block + at);
                }
            }
            if (prefetching) __builtin_prefetch(p + block + 3 * length + 64 * step);
        }
        crc = apply(shift_of<length>, sums[0]) ^ sums[1];
        crc = apply(shift_of<length>, crc) ^ sums[2];
        const uint8x16_t all = fold(fold(fold(lanes[0], by_16, lanes[1]), by_16, lanes[2]), by_16, lanes[3]);
        uint8_t remainder[16];
        vst1q_u8(remainder, all);
        const uint32_t last = update_8_bytes(update_8_bytes(0, load64(remainder)), load64(remainder + 8));
        crc = apply(shift_of<folded>, crc) ^ last;
        if constexpr (copying) dst += block;
    }
    return crc;
}

BATCHPLANT_TARGET_CRC uint32_t update_folding(uint32_t crc, const uint8_t* p, size_t size) {
    uint8_t* no_copy = nullptr;
    crc = update_blocks<false>(crc, p, size, no_copy);
    return update_hardware(crc, p, size);
}

BATCHPLANT_TARGET_CRC uint32_t copy_folding(uint32_t crc, const uint8_t* p, size_t size, uint8_t* dst) {
    crc = update_blocks<true>(crc, p, size, dst);
    return update_and_copy<update_hardware>(crc, p, size, dst);
}

Implementation choose_crc32c() {
    constexpr unsigned long needed = HWCAP_CRC32 | HWCAP_PMULL;
    if ((getauxval(AT_HWCAP) & needed) != needed) return portable_crc32c;
    return {update_folding, copy_folding, "armv8"};
}

#else

Implementation choose_crc32c() { return portable_crc32c; }

#endif

const Implementation& chosen_crc32c() {
    static const Implementation implementation = choose_crc32c();
    return implementation;
}

// libdeflate stays optional: a machine without a network or without root must still be able to build and read FFRecord.
#ifdef BATCHPLANT_LIBDEFLATE
uint32_t update_crc32(uint32_t crc, const uint8_t* p, size_t size) {
    // For a null pointer, which an empty array may have, libdeflate returns 0 whatever the seed.
    return size == 0 ? crc : libdeflate_crc32(crc, p, size);
}
#else
uint32_t update_crc32(uint32_t crc, const uint8_t* p, size_t size) { return ~update_portable<ethernet>(~crc, p, size); }
#endif

}  // namespace

uint32_t crc32c(const uint8_t* data, size_t size, uint32_t seed) { return ~chosen_crc32c().update(~seed, data, size); }

uint32_t crc32c_copy(const uint8_t* data, size_t size, uint8_t* dst) {
    return ~chosen_crc32c().copy(~uint32_t{0}, data, size, dst);
}

uint32_t crc32c_portable(const uint8_t* data, size_t size, uint32_t seed) {
    return ~update_portable<castagnoli>(~seed, data, size);
}

const char* crc32c_name() { return chosen_crc32c().name; }

uint32_t crc32(const uint8_t* data, size_t size, uint32_t seed) { return update_crc32(seed, data, size); }

uint32_t crc32_copy(const uint8_t* data, size_t size, uint8_t* dst) {
    return update_and_copy<update_crc32>(0, data, size, dst);
}

#ifdef BATCHPLANT_LIBDEFLATE
const char* crc32_name() { return "libdeflate"; }
#else
const char* crc32_name() { return "slicing-by-8"; }
#endif

}  // namespace batchplant
