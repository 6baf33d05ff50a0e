#include "riegeli.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace batchplant {
namespace {

constexpr uint64_t block = 1 << 16;
constexpr uint64_t block_header = 24;
constexpr uint64_t usable = block - block_header;
constexpr size_t chunk_header = 40;

uint64_t read_u64(const uint8_t* at) {
    uint64_t value;
    std::memcpy(&value, at, 8);
    if constexpr (std::endian::native == std::endian::big) value = __builtin_bswap64(value);
    return value;
}

void write_u64(uint8_t* at, uint64_t value) {
    if constexpr (std::endian::native == std::endian::big) value = __builtin_bswap64(value);
    std::memcpy(at, &value, 8);
}

// HighwayHash-64 with the key "Riegeli/records\n", twice.
class Hash {
public:
    static uint64_t of(const uint8_t* data, size_t size) {
        Hash hash;
        if (has_vectors()) {
            hash.update_vectors(data, size / 32);
            data += size / 32 * 32, size %= 32;
        }
        for (; size >= 32; data += 32, size -= 32) hash.update(data);
        if (size > 0) hash.update_rest(data, size);
        return hash.finish();
    }

private:
    using Lanes = std::array<uint64_t, 4>;

    // One behind the other, as vectors take them.
    Lanes v0_, v1_;
    Lanes mul0_{0xdbe6d5d5fe4cce2f, 0xa4093822299f31d0, 0x13198a2e03707344, 0x243f6a8885a308d3};
    Lanes mul1_{0x3bd39e10cb0ef593, 0xc0acf169b5f18a8c, 0xbe5466cf34e90c6c, 0x452821e638d01377};

    Hash() {
        constexpr std::array<uint64_t, 2> key{0x2f696c6567656952, 0x0a7364726f636572};
        for (size_t i = 0; i < 4; ++i) {
            v0_[i] = mul0_[i] ^ key[i % 2];
            v1_[i] = mul1_[i] ^ std::rotl(key[i % 2], 32);
        }
    }

    // Adds the bytes of two lanes in another order, so that the middle bits of products spread.
    static void zip(const Lanes& from, size_t pair, Lanes& to) {
        const uint64_t low = from[pair], high = from[pair + 1];
        const auto byte = [](uint64_t value, int at, int place) { return (value >> (8 * at) & 0xff) << (8 * place); };
        to[pair] += byte(low, 3, 0) | byte(high, 4, 1) | (low & 0xff0000) | byte(low, 5, 3) | byte(high, 6, 4) |
                    byte(low, 1, 5) | byte(high, 7, 6) | low << 56;
        to[pair + 1] += byte(high, 3, 0) | byte(low, 4, 1) | (high & 0xff0000) | byte(high, 5, 3) | byte(high, 1, 4) |
                        byte(low, 6, 5) | byte(high, 0, 6) | (low & 0xff00000000000000);
    }

    void update(const Lanes& packet) {
        for (size_t i = 0; i < 4; ++i) {
            v1_[i] += mul0_[i] + packet[i];
            mul0_[i] ^= (v1_[i] & 0xffffffff) * (v0_[i] >> 32);
            v0_[i] += mul1_[i];
            mul1_[i] ^= (v0_[i] & 0xffffffff) * (v1_[i] >> 32);
        }
        for (size_t pair : {0, 2}) zip(v1_, pair, v0_);
        for (size_t pair : {0, 2}) zip(v0_, pair, v1_);
    }

    void update(const uint8_t* data) {
        update(Lanes{read_u64(data), read_u64(data + 8), read_u64(data + 16), read_u64(data + 24)});
    }

    // The order in which `zip` adds the bytes of two lanes.
    static constexpr std::array<uint8_t, 16> zipped{3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7};

    // The same as `update` of so many packets, in vectors: ten times as fast.
#if defined(__x86_64__)
    static bool has_vectors() {
        static const bool has_avx2 = __builtin_cpu_supports("avx2");
        return has_avx2;
    }

    [[gnu::target("avx2")]] void update_vectors(const uint8_t* data, size_t packets) {
        const __m256i order =
            _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(zipped.data())));
        auto* const state = reinterpret_cast<__m256i*>(this);
        __m256i v0 = _mm256_loadu_si256(state), v1 = _mm256_loadu_si256(state + 1);
        __m256i mul0 = _mm256_loadu_si256(state + 2), mul1 = _mm256_loadu_si256(state + 3);
        for (size_t i = 0; i < packets; ++i, data += 32) {
            const __m256i packet = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data));
            v1 = _mm256_add_epi64(v1, _mm256_add_epi64(mul0, packet));
            mul0 = _mm256_xor_si256(mul0, _mm256_mul_epu32(v1, _mm256_srli_epi64(v0, 32)));
            v0 = _mm256_add_epi64(v0, mul1);
            mul1 = _mm256_xor_si256(mul1, _mm256_mul_epu32(v0, _mm256_srli_epi64(v1, 32)));
            v0 = _mm256_add_epi64(v0, _mm256_shuffle_epi8(v1, order));
            v1 = _mm256_add_epi64(v1, _mm256_shuffle_epi8(v0, order));
        }
        _mm256_storeu_si256(state, v0), _mm256_storeu_si256(state + 1, v1);
        _mm256_storeu_si256(state + 2, mul0), _mm256_storeu_si256(state + 3, mul1);
    }
#elif defined(__aarch64__)
    static bool has_vectors() { return std::endian::native == std::endian::little; }

    void update_vectors(const uint8_t* data, size_t packets) {
        const uint8x16_t order = vld1q_u8(zipped.data());
        const auto zip = [&](uint64x2_t value) {
            return vreinterpretq_u64_u8(vqtbl1q_u8(vreinterpretq_u8_u64(value), order));
        };
        for (size_t half = 0; half < 4; half += 2) {
            uint64x2_t v0 = vld1q_u64(&v0_[half]), v1 = vld1q_u64(&v1_[half]);
            uint64x2_t mul0 = vld1q_u64(&mul0_[half]), mul1 = vld1q_u64(&mul1_[half]);
            for (size_t i = 0; i < packets; ++i) {
                const uint64x2_t packet = vreinterpretq_u64_u8(vld1q_u8(data + 32 * i + 8 * half));
                v1 = vaddq_u64(v1, vaddq_u64(mul0, packet));
                mul0 = veorq_u64(mul0, vmull_u32(vmovn_u64(v1), vshrn_n_u64(v0, 32)));
                v0 = vaddq_u64(v0, mul1);
                mul1 = veorq_u64(mul1, vmull_u32(vmovn_u64(v0), vshrn_n_u64(v1, 32)));
                v0 = vaddq_u64(v0, zip(v1));
                v1 = vaddq_u64(v1, zip(v0));
            }
            vst1q_u64(&v0_[half], v0), vst1q_u64(&v1_[half], v1);
            vst1q_u64(&mul0_[half], mul0), vst1q_u64(&mul1_[half], mul1);
        }
    }
#else
    static bool has_vectors() { return false; }

    void update_vectors(const uint8_t*, size_t) {}
#endif

    void update_rest(const uint8_t* data, size_t size) {
        const auto turn = [size](uint64_t half) {
            return uint64_t{std::rotl(static_cast<uint32_t>(half), static_cast<int>(size))};
        };
        for (size_t i = 0; i < 4; ++i) {
            v0_[i] += (uint64_t{size} << 32) + size;
            v1_[i] = turn(v1_[i] >> 32) << 32 | turn(v1_[i]);
        }
        std::array<uint8_t, 32> packet{};
        const size_t whole = size & ~size_t{3}, rest = size & 3;
        std::memcpy(packet.data(), data, whole);
        if (size & 16) {
            std::memcpy(packet.data() + 28, data + size - 4, 4);
        } else if (rest > 0) {
            packet[16] = data[whole];
            packet[17] = data[whole + rest / 2];
            packet[18] = data[size - 1];
        }
        update(packet.data());
    }

    uint64_t finish() {
        for (int round = 0; round < 4; ++round) {
            update(Lanes{std::rotl(v0_[2], 32), std::rotl(v0_[3], 32), std::rotl(v0_[0], 32), std::rotl(v0_[1], 32)});
        }
        return v0_[0] + v1_[0] + mul0_[0] + mul1_[0];
    }
};

// Copies the next `want` bytes of a chunk, without the block headers between; false where the data end before.
bool copy_chunk(const uint8_t* data, size_t size, uint64_t position, size_t& at, uint8_t* out, uint64_t want) {
    while (want > 0) {
        if ((position + at) % block == 0) at += block_header;
        if (at >= size) return false;
        const uint64_t part = std::min({want, block - (position + at) % block, uint64_t{size - at}});
        std::memcpy(out, data + at, part);
        out += part, at += part, want -= part;
    }
    return true;
}

uint64_t end_of(uint64_t begin, const RiegeliChunk& chunk) {
    const uint64_t bytes = chunk_header + static_cast<uint64_t>(chunk.size);
    const uint64_t headers = (bytes + (begin + usable - 1) % block) / usable;
    // A record has a place of its own, so there are no fewer bytes than records. No chunk begins in a block header.
    uint64_t least = begin + static_cast<uint64_t>(chunk.records);
    if (least % block > 0 && least % block <= block_header) least += block_header + 1 - least % block;
    return std::max(begin + bytes + headers * block_header, least);
}

}  // namespace

RiegeliChunk read_riegeli(const uint8_t* data, size_t size, uint64_t position, uint8_t* out) {
    RiegeliChunk chunk;
    std::array<uint8_t, chunk_header> header;
    size_t at = 0;
    if (!copy_chunk(data, size, position, at, header.data(), chunk_header)) {
        chunk.error = "the file ends within the header of a chunk";
        return chunk;
    }
    if (Hash::of(header.data() + 8, chunk_header - 8) != read_u64(header.data())) {
        chunk.error = "the hash of a chunk's header is wrong";
        return chunk;
    }
    const uint64_t bytes = read_u64(header.data() + 8), decoded = read_u64(header.data() + 32);
    chunk.kind = header[24];
    chunk.records = static_cast<int64_t>(read_u64(header.data() + 24) >> 8);
    if (bytes > size - at || decoded > INT64_MAX || !copy_chunk(data, size, position, at, out, bytes)) {
        chunk.error = "a chunk is longer than its place";
        return chunk;
    }
    chunk.size = static_cast<int64_t>(bytes);
    chunk.decoded = static_cast<int64_t>(decoded);
    if (Hash::of(out, bytes) != read_u64(header.data() + 16)) chunk.error = "the hash of a chunk's data is wrong";
    return chunk;
}

void frame_riegeli(const uint8_t* data, const RiegeliChunk& chunk, uint64_t position, std::vector<uint8_t>& out) {
    const auto bytes = static_cast<size_t>(chunk.size);
    std::array<uint8_t, chunk_header> header;
    write_u64(header.data() + 8, bytes);
    write_u64(header.data() + 16, Hash::of(data, bytes));
    write_u64(header.data() + 24, static_cast<uint64_t>(chunk.records) << 8 | static_cast<uint64_t>(chunk.kind));
    write_u64(header.data() + 32, static_cast<uint64_t>(chunk.decoded));
    write_u64(header.data(), Hash::of(header.data() + 8, chunk_header - 8));
    const uint64_t end = end_of(position, chunk);
    uint64_t at = position;
    const auto put = [&](const uint8_t* from, uint64_t size) {
        while (size > 0) {
            if (at % block == 0) {
                std::array<uint8_t, block_header> inside;
                write_u64(inside.data() + 8, at - position);
                write_u64(inside.data() + 16, end - at);
                write_u64(inside.data(), Hash::of(inside.data() + 8, block_header - 8));
                out.insert(out.end(), inside.begin(), inside.end());
                at += block_header;
            }
            const uint64_t part = std::min(size, block - at % block);
            if (from == nullptr) out.resize(out.size() + part);
            if (from != nullptr) out.insert(out.end(), from, from + part), from += part;
            at += part, size -= part;
        }
    };
    put(header.data(), chunk_header);
    if (bytes > 0) put(data, bytes);
    while (at < end) put(nullptr, std::min(end - at, at % block == 0 ? 1 : block - at % block));
}

}  // namespace batchplant
