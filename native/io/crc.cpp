#include "crc.hpp"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#define BATCHPLANT_TARGET_CRC __attribute__((target("sse4.2")))
#define BATCHPLANT_TARGET_FOLD __attribute__((target("sse4.2,pclmul")))
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
#define BATCHPLANT_TARGET_FOLD BATCHPLANT_TARGET_CRC
#endif

namespace batchplant {
namespace {

// The two polynomials, bits reversed: Castagnoli's, and the one of zlib, PNG and Ethernet.
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

template <uint32_t polynomial>
constexpr Tables make_tables() {
    Tables tables{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? polynomial : 0);
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

template <uint32_t polynomial>
constexpr Tables tables_of = make_tables<polynomial>();

template <uint32_t polynomial>
uint32_t update_portable(uint32_t crc, const uint8_t* p, size_t size) {
    static_assert(std::endian::native == std::endian::little, "the eight-byte step assumes little-endian loads");
    constexpr const Tables& tables = tables_of<polynomial>;
    for (; size >= 8; size -= 8, p += 8) {
        uint64_t x = load64(p) ^ crc;
        crc = tables[7][x & 0xFF] ^ tables[6][(x >> 8) & 0xFF] ^ tables[5][(x >> 16) & 0xFF] ^
              tables[4][(x >> 24) & 0xFF] ^ tables[3][(x >> 32) & 0xFF] ^ tables[2][(x >> 40) & 0xFF] ^
              tables[1][(x >> 48) & 0xFF] ^ tables[0][x >> 56];
    }
    for (; size > 0; --size, ++p) crc = (crc >> 8) ^ tables[0][(crc ^ *p) & 0xFF];
    return crc;
}

template <Update update>
uint32_t sum_and_copy(uint32_t crc, const uint8_t* p, size_t size, uint8_t* to) {
    crc = update(crc, p, size);
    if (size > 0) std::memcpy(to, p, size);
    return crc;
}

template <uint32_t polynomial>
Implementation portable() {
    return {update_portable<polynomial>, sum_and_copy<update_portable<polynomial>>, "slicing-by-8"};
}

#if defined(BATCHPLANT_TARGET_CRC)

// What a CRC becomes after `length` zero bytes: a linear map of its 32 bits, here as four lookups.
using Shift = std::array<std::array<uint32_t, 256>, 4>;

template <uint32_t polynomial, size_t length>
constexpr Shift make_shift() {
    std::array<uint32_t, 32> bits{};
    for (size_t bit = 0; bit < 32; ++bit) {
        uint32_t crc = uint32_t{1} << bit;
        for (size_t i = 0; i < length; ++i) crc = (crc >> 8) ^ tables_of<polynomial>[0][crc & 0xFF];
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

template <uint32_t polynomial, size_t length>
constexpr Shift shift_of = make_shift<polynomial, length>();

inline uint32_t apply(const Shift& shift, uint32_t crc) {
    return shift[0][crc & 0xFF] ^ shift[1][(crc >> 8) & 0xFF] ^ shift[2][(crc >> 16) & 0xFF] ^ shift[3][crc >> 24];
}

template <uint32_t polynomial>
BATCHPLANT_TARGET_CRC inline uint32_t step8(uint32_t crc, uint64_t bytes) {
#if defined(__x86_64__)
    static_assert(polynomial == castagnoli, "x86 has the instruction for this one only");
    return static_cast<uint32_t>(_mm_crc32_u64(crc, bytes));
#else
    if constexpr (polynomial == castagnoli) return __crc32cd(crc, bytes);
    return __crc32d(crc, bytes);
#endif
}

template <uint32_t polynomial>
BATCHPLANT_TARGET_CRC inline uint32_t step1(uint32_t crc, uint8_t byte) {
#if defined(__x86_64__)
    return _mm_crc32_u8(crc, byte);
#else
    if constexpr (polynomial == castagnoli) return __crc32cb(crc, byte);
    return __crc32b(crc, byte);
#endif
}

// The instruction takes two or three cycles but a new one can begin every cycle: three stretches of `length`
// bytes are summed side by side, and then put together.
template <uint32_t polynomial, size_t length>
BATCHPLANT_TARGET_CRC inline uint32_t update_threes(uint32_t crc, const uint8_t*& p, size_t& size) {
    for (; size >= 3 * length; size -= 3 * length, p += 3 * length) {
        uint32_t second = 0, third = 0;
        for (size_t i = 0; i < length; i += 8) {
            crc = step8<polynomial>(crc, load64(p + i));
            second = step8<polynomial>(second, load64(p + length + i));
            third = step8<polynomial>(third, load64(p + 2 * length + i));
        }
        crc = apply(shift_of<polynomial, length>, crc) ^ second;
        crc = apply(shift_of<polynomial, length>, crc) ^ third;
    }
    return crc;
}

template <uint32_t polynomial>
BATCHPLANT_TARGET_CRC uint32_t update_hardware(uint32_t crc, const uint8_t* p, size_t size) {
    crc = update_threes<polynomial, 1024>(crc, p, size);
    crc = update_threes<polynomial, 128>(crc, p, size);
    for (; size >= 8; size -= 8, p += 8) crc = step8<polynomial>(crc, load64(p));
    for (; size > 0; --size, ++p) crc = step1<polynomial>(crc, *p);
    return crc;
}

// Folding: 16 bytes are multiplied, without carries, by x to the power of the bits that are skipped, modulo the
// polynomial, and added to the bytes behind. What is left in the end has the same remainder as all of them.
constexpr uint64_t factor(uint32_t polynomial, int bits) {
    uint32_t power = 0x80000000;
    for (int bit = 0; bit < bits; ++bit) power = (power >> 1) ^ ((power & 1) ? polynomial : 0);
    return uint64_t{power} << 1;
}

template <uint32_t polynomial>
struct Factors {
    // For the lower and the upper half of the 16 bytes: over 64 bytes, and over 16.
    static constexpr uint64_t low_64 = factor(polynomial, 512 + 32), high_64 = factor(polynomial, 512 - 32);
    static constexpr uint64_t low_16 = factor(polynomial, 128 + 32), high_16 = factor(polynomial, 128 - 32);
};

#endif

#if defined(__x86_64__)

BATCHPLANT_TARGET_FOLD inline __m128i fold(__m128i value, __m128i factors, __m128i next) {
    const __m128i low = _mm_clmulepi64_si128(value, factors, 0x00);
    const __m128i high = _mm_clmulepi64_si128(value, factors, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

BATCHPLANT_TARGET_FOLD inline __m128i load128(const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

BATCHPLANT_TARGET_FOLD uint32_t update_folding(uint32_t crc, const uint8_t* p, size_t size) {
    if (size < 128) return update_portable<ethernet>(crc, p, size);
    using Over = Factors<ethernet>;
    const __m128i by_64 = _mm_set_epi64x(Over::high_64, Over::low_64);
    const __m128i by_16 = _mm_set_epi64x(Over::high_16, Over::low_16);
    __m128i a = _mm_xor_si128(load128(p), _mm_cvtsi32_si128(static_cast<int>(crc)));
    __m128i b = load128(p + 16), c = load128(p + 32), d = load128(p + 48);
    for (p += 64, size -= 64; size >= 64; p += 64, size -= 64) {
        a = fold(a, by_64, load128(p));
        b = fold(b, by_64, load128(p + 16));
        c = fold(c, by_64, load128(p + 32));
        d = fold(d, by_64, load128(p + 48));
    }
    a = fold(fold(fold(a, by_16, b), by_16, c), by_16, d);
    for (; size >= 16; p += 16, size -= 16) a = fold(a, by_16, load128(p));
    uint8_t rest[16];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(rest), a);
    return update_portable<ethernet>(update_portable<ethernet>(0, rest, sizeof rest), p, size);
}

Implementation choose_crc32c() {
    if (!__builtin_cpu_supports("sse4.2")) return portable<castagnoli>();
    return {update_hardware<castagnoli>, sum_and_copy<update_hardware<castagnoli>>, "sse4.2"};
}

Implementation choose_crc32() {
    if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul")) return portable<ethernet>();
    return {update_folding, sum_and_copy<update_folding>, "pclmul"};
}

#elif defined(BATCHPLANT_TARGET_CRC)

BATCHPLANT_TARGET_FOLD inline uint8x16_t fold(uint8x16_t value, poly64x2_t factors, uint8x16_t next) {
    const poly64x2_t halves = vreinterpretq_p64_u8(value);
    const poly64_t half = vgetq_lane_p64(halves, 0), factor = vgetq_lane_p64(factors, 0);
    const uint8x16_t low = vreinterpretq_u8_p128(vmull_p64(half, factor));
    const uint8x16_t high = vreinterpretq_u8_p128(vmull_high_p64(halves, factors));
    return veorq_u8(veorq_u8(low, high), next);
}

// The instruction and the folding run on different parts of the processor, so both are kept busy: of every
// block three stretches go one way and the last one the other. With `copying` the bytes go to `to` on the way,
// and the next block is called for: then memory is waited for once, and not for the sum and again for the copy.
template <uint32_t polynomial, bool copying>
BATCHPLANT_TARGET_FOLD inline uint32_t update_mixed(uint32_t crc, const uint8_t*& p, size_t& size, uint8_t*& to) {
    constexpr size_t steps = 8, length = 16 * steps, folded = 64 * steps, block = 3 * length + folded;
    using Over = Factors<polynomial>;
    const poly64x2_t by_64 = vcombine_p64(vcreate_p64(Over::low_64), vcreate_p64(Over::high_64));
    const poly64x2_t by_16 = vcombine_p64(vcreate_p64(Over::low_16), vcreate_p64(Over::high_16));
    for (; size >= block; size -= block, p += block) {
        // Behind the last block lie the bytes of another.
        const bool more = copying && size >= 2 * block;
        uint32_t sums[3] = {crc, 0, 0};
        uint8x16_t lanes[4] = {};
        for (size_t step = 0; step < steps; ++step) {
            for (size_t lane = 0; lane < 4; ++lane) {
                const size_t at = 3 * length + 64 * step + 16 * lane;
                const uint8x16_t bytes = vld1q_u8(p + at);
                lanes[lane] = fold(lanes[lane], by_64, bytes);
                if constexpr (copying) vst1q_u8(to + at, bytes);
            }
            for (size_t stretch = 0; stretch < 3; ++stretch) {
                const size_t at = stretch * length + 16 * step;
                const uint64_t bytes[2] = {load64(p + at), load64(p + at + 8)};
                sums[stretch] = step8<polynomial>(step8<polynomial>(sums[stretch], bytes[0]), bytes[1]);
                if constexpr (copying) {
                    std::memcpy(to + at, bytes, sizeof bytes);
                    if (more && step % 4 == 0) __builtin_prefetch(p + block + at);
                }
            }
            if (more) __builtin_prefetch(p + block + 3 * length + 64 * step);
        }
        crc = apply(shift_of<polynomial, length>, sums[0]) ^ sums[1];
        crc = apply(shift_of<polynomial, length>, crc) ^ sums[2];
        const uint8x16_t all = fold(fold(fold(lanes[0], by_16, lanes[1]), by_16, lanes[2]), by_16, lanes[3]);
        uint8_t rest[16];
        vst1q_u8(rest, all);
        const uint32_t last = step8<polynomial>(step8<polynomial>(0, load64(rest)), load64(rest + 8));
        crc = apply(shift_of<polynomial, folded>, crc) ^ last;
        if constexpr (copying) to += block;
    }
    return crc;
}

template <uint32_t polynomial>
BATCHPLANT_TARGET_FOLD uint32_t update_folding(uint32_t crc, const uint8_t* p, size_t size) {
    uint8_t* nowhere = nullptr;
    crc = update_mixed<polynomial, false>(crc, p, size, nowhere);
    return update_hardware<polynomial>(crc, p, size);
}

template <uint32_t polynomial>
BATCHPLANT_TARGET_FOLD uint32_t copy_folding(uint32_t crc, const uint8_t* p, size_t size, uint8_t* to) {
    crc = update_mixed<polynomial, true>(crc, p, size, to);
    return sum_and_copy<update_hardware<polynomial>>(crc, p, size, to);
}

template <uint32_t polynomial>
Implementation choose() {
    constexpr unsigned long needed = HWCAP_CRC32 | HWCAP_PMULL;
    if ((getauxval(AT_HWCAP) & needed) != needed) return portable<polynomial>();
    return {update_folding<polynomial>, copy_folding<polynomial>, "armv8"};
}

Implementation choose_crc32c() { return choose<castagnoli>(); }
Implementation choose_crc32() { return choose<ethernet>(); }

#else

Implementation choose_crc32c() { return portable<castagnoli>(); }
Implementation choose_crc32() { return portable<ethernet>(); }

#endif

const Implementation& chosen_crc32c() {
    static const Implementation implementation = choose_crc32c();
    return implementation;
}

const Implementation& chosen_crc32() {
    static const Implementation implementation = choose_crc32();
    return implementation;
}

}  // namespace

uint32_t crc32c(const uint8_t* data, size_t size, uint32_t seed) {
    return ~chosen_crc32c().update(~seed, data, size);
}

uint32_t crc32c_portable(const uint8_t* data, size_t size, uint32_t seed) {
    return ~update_portable<castagnoli>(~seed, data, size);
}

const char* crc32c_name() { return chosen_crc32c().name; }

uint32_t crc32(const uint8_t* data, size_t size, uint32_t seed) { return ~chosen_crc32().update(~seed, data, size); }

uint32_t crc32c_copy(const uint8_t* data, size_t size, uint8_t* to) {
    return ~chosen_crc32c().copy(~uint32_t{0}, data, size, to);
}

uint32_t crc32_copy(const uint8_t* data, size_t size, uint8_t* to) {
    return ~chosen_crc32().copy(~uint32_t{0}, data, size, to);
}

uint32_t crc32_portable(const uint8_t* data, size_t size, uint32_t seed) {
    return ~update_portable<ethernet>(~seed, data, size);
}

const char* crc32_name() { return chosen_crc32().name; }

}  // namespace batchplant
