#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace batchplant {

// Unpacks the beginning of a zlib stream and no more: what libraries for whole buffers do not do, and those for streams
// do slowly. Keeps its tables from call to call. Not for two threads at once.
class Inflater {
public:
    enum class Result { filled, short_of_bytes, damaged };

    // What may be read behind the packed bytes, and written behind those that are wanted.
    static constexpr size_t packed_overrun = 16, overrun = 320;

    // The first `want` bytes. What comes after them is not looked at, nor is the checksum.
    Result run(const uint8_t* packed, size_t size, uint8_t* out, size_t want);

private:
    // What the next bits mean:
    //   bits 0..5    how many bits it takes, those of a value behind the code included
    //   bit 6        whether it is two bytes
    //   bits 8..11   how many of these are the code
    //   bits 12..15  what it is, if not a match
    //   bits 16..31  the byte or bytes, the least length or distance, or where in the table to look on
    using Entry = uint32_t;

    template <unsigned window, size_t symbols>
    struct Table {
        static constexpr unsigned longest = 15;
        std::array<Entry, (size_t{1} << window) + (symbols << (longest - window))> entries;

        Entry operator[](size_t bits) const { return entries[bits & ((size_t{1} << window) - 1)]; }
        // Behind the first bits of a code that is longer than the window.
        Entry rest(Entry entry, uint64_t bits) const {
            return entries[(entry >> 16) + (bits & ((size_t{1} << (longest - window)) - 1))];
        }
        bool build(const uint8_t* lengths, size_t count, const Entry* meanings);
        void pair_literals();
    };

    struct Bits;

    bool build(const uint8_t* lengths, size_t length_count, const uint8_t* distances, size_t distance_count);
    bool read_tables(Bits& bits);
    bool fixed_tables();
    Result read_block(Bits& bits, const uint8_t* begin, uint8_t*& out, const uint8_t* stop) const;

    Table<12, 288> lengths_;
    Table<8, 32> distances_;
    Table<7, 19> counts_;
};

}  // namespace batchplant
