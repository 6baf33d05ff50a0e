#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

namespace batchplant {

// JPEG's Huffman codes, for baseline.cpp and progressive.cpp: tables that answer most symbols with one look, and the
// bits of a scan.

// A code as a JPEG defines it: how many codes there are of each length, and what they stand for.
struct HuffmanCode {
    std::array<uint8_t, 17> counts{};  // by length; [0] is unused
    std::array<uint8_t, 256> symbols{};

    bool operator==(const HuffmanCode&) const = default;
};

// Zigzag order: positions of the coefficients of a scan in a block.
// A run that leads out of the block is noticed at the block's end, so there is room for the longest; and for
// HuffmanTable::nowhere.
inline constexpr std::array<uint8_t, 64 + 80> zigzag = [] {
    std::array<uint8_t, 64 + 80> order{};
    order.fill(64);
    size_t n = 0;
    for (size_t diagonal = 0; diagonal < 15; ++diagonal) {
        for (size_t i = 0; i <= diagonal; ++i) {
            const size_t x = diagonal % 2 == 0 ? i : diagonal - i, y = diagonal - x;
            if (x < 8 && y < 8) order[n++] = static_cast<uint8_t>(y * 8 + x);
        }
    }
    return order;
}();

// Meaning of the next bits, looked up by the first `window` of them:
//   bits 0..5    how many bits it takes: the code, and the value after it where all of it is in the window
//   bits 6..7    kind
//   bits 8..15   how many coefficients further it leads; of an end of block, the size of the number of blocks in a
//                progressive scan
//   bits 16..31  the value, or how many bits the value has where it is not in the window
// Those of first coefficients differ: bits 0..5 count the value too, 8..13 how many of them come before it, and
// 16..21 are 63 less its size.
using HuffmanEntry = uint32_t;

class HuffmanTable {
public:
    static constexpr int window = 11;
    static constexpr size_t entries = size_t{1} << window;

    enum Kind : uint32_t { value = 0, end_of_block = 1, value_follows = 2, long_code = 3 };

    // False where libjpeg would refuse the code. A code that was set before costs nothing.
    bool set(const HuffmanCode& code, bool is_dc);

    HuffmanEntry operator[](uint64_t bits) const { return entries_[bits >> (64 - window)]; }

    // The entry of a code longer than the window; 0 if there is none such. Its value is never in it.
    HuffmanEntry find_long(uint64_t bits) const;

    // Two symbols in one look, or one; for blocks that are needed. Of the second only the code has to be in the window:
    // its value is taken from the bits.
    //   bits 0..5    how many bits they take, at most `most_bits`
    //   bits 8..13   how many of them come before the second's value
    //   bits 16..21  63 less the size of that value, which has nine bits at most
    //   bits 24..31  how many coefficients further the first leads; `nowhere` where there is none
    //   bits 32..47  the first's value
    //   bits 48..63  how many coefficients further both lead: as far as the first where there is no second. Plus `ends`
    //                with an end of block behind them, or `stuck` where the code is too long
    const uint64_t* pairs();

    // For blocks that are skipped: as many symbols as the window holds. Bits 0..5 are the bits they take; how many
    // coefficients further they lead stands from bit 6 on, with `ends` and `stuck` as above.
    const uint16_t* runs();

    static constexpr unsigned ends = 128, stuck = 512, nowhere = 80;
    // Looks at pairs or runs that the bits of a refill are enough for, and what each may take.
    static constexpr int looks_at_once = 3;
    static constexpr size_t most_bits = 56 / looks_at_once;

private:
    bool build(bool is_dc);
    HuffmanEntry entry_of(unsigned symbol, int length) const;
    struct Symbol;
    Symbol symbol_at(size_t index, size_t used) const;

    HuffmanCode code_;
    bool valid_ = false, is_dc_ = false, has_pairs_ = false, has_runs_ = false;
    std::array<HuffmanEntry, entries> entries_;
    std::array<uint64_t, entries> pairs_;
    std::array<uint16_t, entries> runs_;
    std::array<uint32_t, 17> limit_;  // by length: the first 16 bits that are beyond the codes of that length
    std::array<int, 17> first_;       // what to add to a code for the index of its symbol
};

inline size_t length_of(HuffmanEntry entry) { return entry & 63; }
inline HuffmanTable::Kind kind_of(HuffmanEntry entry) { return static_cast<HuffmanTable::Kind>((entry >> 6) & 3); }
inline size_t advance_of(HuffmanEntry entry) { return (entry >> 8) & 255; }
inline int value_of(HuffmanEntry entry) { return static_cast<int32_t>(entry) >> 16; }

inline size_t first_advance_of(uint64_t pair) { return static_cast<uint8_t>(pair >> 24); }
inline size_t whole_advance_of(uint64_t pair) { return pair >> 48; }
inline int16_t first_value_of(uint64_t pair) { return static_cast<int16_t>(pair >> 32); }

// A value as JPEG writes it, from bits that begin with it: those that begin with 0 are negative, less one. Without a
// branch, since half of them are. `shift` is 63 less the size; only its low six bits count.
inline int read_value(uint64_t bits, uint64_t shift) {
    const auto negative = static_cast<uint64_t>(~(static_cast<int64_t>(bits) >> 63));
    return static_cast<int>(((bits ^ negative) >> 1 >> (shift & 63)) ^ negative) - static_cast<int>(negative);
}

// The second's, from the bits that the pair was looked up by; 0 where there is none.
inline int second_value_of(uint64_t pair, uint64_t bits) { return read_value(bits << (pair >> 8 & 63), pair >> 16); }

// A place among bits, to be copied into a function's own variables while it works.
struct BitCursor {
    const uint8_t* next = nullptr;
    uint64_t bits = 0;   // from the top
    uint64_t count = 0;  // how many of them, in its low six bits; there may be a few more, which come again

    // Makes at least 56 bits ready.
    void refill() {
        uint64_t bytes;
        std::memcpy(&bytes, next, sizeof bytes);
        if constexpr (std::endian::native == std::endian::little) bytes = __builtin_bswap64(bytes);
        bits |= bytes >> (count & 63);
        next += (~count >> 3) & 7;
        count |= 56;
    }

    // Only the low six bits of the number count, so that an entry of a table can be passed as it is.
    void drop(uint64_t number) {
        bits <<= number & 63;
        count -= number;
    }

    // A value of so many bits, 1 to 15.
    int take_value(size_t size) {
        const int value = read_value(bits, 63 - size);
        drop(size);
        return value;
    }
};

// Adds the difference of a block's first coefficient from that of the block before. False where the bits mean nothing.
inline bool read_dc(BitCursor& at, const HuffmanTable& table, int64_t& prediction) {
    at.refill();
    HuffmanEntry entry = table[at.bits];
    if (kind_of(entry) == HuffmanTable::long_code) [[unlikely]] {
        entry = table.find_long(at.bits);
        if (entry == 0) return false;
    }
    prediction += read_value(at.bits << (entry >> 8 & 63), entry >> 16);
    at.drop(entry);
    return true;
}

// A scan's bytes without the zeros that JPEG stuffs behind each 0xFF. They are taken out for some thousands of
// bytes ahead, so that the bits can be had without looking at them.
// The bits end with any marker or with the data; zeros follow, and whether they were used is asked afterwards.
class ScanBytes {
public:
    // More than the blocks of any MCU that baseline.cpp takes can use: six, of 64 values, of 31 bits at most.
    static constexpr size_t slack = 2048;

    BitCursor start(const uint8_t* data, const uint8_t* end);

    // Makes at least `slack` bytes ready.
    BitCursor feed(BitCursor at) { return at.next > ready_ ? fill(at) : at; }

    // True if more bits were used than there are, or, where no marker ends them, almost as many, because
    // libjpeg looks some bytes ahead and misses the marker.
    bool overran(const BitCursor& at) const;
    // True if all bytes were used, and this marker follows.
    bool ends_with(uint8_t marker, const BitCursor& at) const;
    // The same with any marker.
    bool ends_with_marker(const BitCursor& at) const;
    // Goes on behind that marker.
    BitCursor skip_marker() { return start(source_ + 2, source_end_); }
    // Bytes not consumed yet; they begin with the marker if one was met.
    const uint8_t* rest() const { return source_; }

private:
    bool at_marker() const { return source_end_ - source_ >= 2 && source_[1] != 0 && source_[1] != 0xFF; }
    int64_t left(const BitCursor& at) const;
    BitCursor fill(BitCursor at);

    static constexpr size_t capacity = 16384;

    const uint8_t* ready_ = nullptr;  // a place up to here has `slack` bytes before it
    const uint8_t* last_ = nullptr;   // the end of the bytes taken over
    const uint8_t* source_ = nullptr;
    const uint8_t* source_end_ = nullptr;
    bool at_end_ = false;  // at a marker or the end
    bool overran_ = false;
    std::array<uint8_t, capacity + slack + 16> bytes_;
};

// The next marker in a scan's bytes that does not restart it, or their end.
const uint8_t* find_marker(const uint8_t* data, const uint8_t* end);

}  // namespace batchplant
