#include "inflate.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace batchplant {
namespace {

constexpr size_t length_symbols = 288, distance_symbols = 32, count_symbols = 19;

constexpr uint32_t literal = 1 << 12, look_on = 1 << 13, end_of_block = 1 << 14, invalid = 1 << 15;
constexpr uint32_t two_shift = 6, two = 1 << two_shift;  // bytes
constexpr uint32_t not_a_match = literal | look_on | end_of_block | invalid;

constexpr uint32_t meaning(uint32_t kind, uint32_t value, uint32_t more_bits = 0) {
    return value << 16 | kind | more_bits;
}

// Lengths and distances come in groups of equal numbers of further bits.
template <typename Meanings>
constexpr Meanings grouped(Meanings made, size_t first, size_t end, uint32_t value, size_t group) {
    for (size_t i = first; i < end; ++i) {
        const size_t place = i - first;
        const auto more = static_cast<uint32_t>(place < 2 * group ? 0 : place / group - 1);
        made[i] = meaning(0, value, more);
        value += uint32_t{1} << more;
    }
    return made;
}

constexpr auto length_meanings = [] {
    std::array<uint32_t, length_symbols> made;
    made.fill(meaning(invalid, 0));
    for (uint32_t i = 0; i < 256; ++i) made[i] = meaning(literal, i);
    made[256] = meaning(end_of_block, 0);
    made = grouped(made, 257, 285, 3, 4);
    made[285] = meaning(0, 258);
    return made;
}();

constexpr auto distance_meanings = [] {
    std::array<uint32_t, distance_symbols> made;
    made.fill(meaning(invalid, 0));
    return grouped(made, 0, 30, 1, 2);
}();

constexpr auto count_meanings = [] {
    std::array<uint32_t, count_symbols> made{};
    for (uint32_t i = 0; i < count_symbols; ++i) made[i] = meaning(literal, i);
    return made;
}();

}  // namespace

// Bits, the lowest first. Behind the end there are packed_overrun bytes of whatever content, which may be loaded.
struct Inflater::Bits {
    const uint8_t* next;
    const uint8_t* end;
    uint64_t bits = 0;
    uint64_t count = 0;  // in its low six bits

    // Makes at least 56 ready. False where so many were used up before that the data are over.
    bool refill() {
        // Up to eight bytes have been loaded ahead.
        if (next > end + 8) return false;
        uint64_t bytes;
        std::memcpy(&bytes, next, sizeof bytes);
        if constexpr (std::endian::native == std::endian::big) bytes = __builtin_bswap64(bytes);
        bits |= bytes << (count & 63);
        next += (~count >> 3) & 7;
        count |= 56;
        return true;
    }
    // Of the number the low six bits count, so that an entry of a table can be given as it is.
    void drop(uint64_t number) {
        bits >>= number & 63;
        count -= number;
    }
    uint64_t take(unsigned number) {
        const uint64_t value = bits & ((uint64_t{1} << number) - 1);
        drop(number);
        return value;
    }
    // Whether bits behind the end were used.
    bool overran() const { return next - (count & 63) / 8 > end; }
};

// Codes are handed out in order of length, then of symbol. Each fills all places whose lowest bits are its own.
template <unsigned window, size_t symbols>
bool Inflater::Table<window, symbols>::build(const uint8_t* lengths, size_t count, const Entry* meanings) {
    std::array<uint16_t, longest + 2> starts{};
    for (size_t i = 0; i < count; ++i) ++starts[lengths[i] + 1u];
    const size_t unused = starts[1];
    starts[1] = 0;
    // How many codes of the longest kind there is room for.
    size_t room = size_t{1} << longest;
    for (unsigned length = 1; length <= longest; ++length) {
        const size_t taken = size_t{starts[length + 1]} << (longest - length);
        if (taken > room) return false;
        room -= taken;
        starts[length + 1] = static_cast<uint16_t>(starts[length + 1] + starts[length]);
    }
    // One code of one bit, or none, may leave room.
    const size_t codes = count - unused;
    if (room > 0 && codes > 0 && !(codes == 1 && room == size_t{1} << (longest - 1))) return false;
    std::array<uint16_t, symbols> sorted;
    for (size_t i = 0; i < count; ++i) {
        if (lengths[i] > 0) sorted[starts[lengths[i]]++] = static_cast<uint16_t>(i);
    }
    constexpr size_t window_size = size_t{1} << window;
    if (room > 0) std::fill_n(entries.begin(), window_size, meaning(invalid, 0, 0) | 1 << 8 | 1);
    size_t code = 0, used = 0, free = window_size;  // the code's bits stand the other way round
    constexpr unsigned further = longest - window;
    for (unsigned length = 1; length <= longest; ++length) {
        for (; used < starts[length]; ++used) {
            const Entry means = meanings[sorted[used]];
            const unsigned bits = length <= window ? length : length - window;
            const Entry entry = means + (bits << 8 | bits);
            const auto fill = [entry](Entry* table, size_t first, unsigned step, unsigned size) {
                for (size_t at = first; at < size_t{1} << size; at += size_t{1} << step) table[at] = entry;
            };
            if (length <= window) {
                fill(entries.data(), code, length, window);
            } else {
                Entry& link = entries[code & (window_size - 1)];
                // The first of a window's codes that are longer has zeros behind it.
                if (code >> window == 0) {
                    link = meaning(look_on, static_cast<uint32_t>(free)) | window << 8 | window;
                    free += size_t{1} << further;
                }
                fill(entries.data() + (link >> 16), code >> window, bits, further);
            }
            // One more: a code's last bit is the highest here.
            size_t bit = size_t{1} << (length - 1);
            while ((code & bit) != 0) {
                code ^= bit;
                bit >>= 1;
            }
            code |= bit;
        }
    }
    return true;
}

// Two bytes in one look, where the window holds the codes of both.
template <unsigned window, size_t symbols>
void Inflater::Table<window, symbols>::pair_literals() {
    // From the end on: the second byte's place is before the first's, and has one byte yet.
    for (size_t i = size_t{1} << window; i-- > 0;) {
        const Entry first = entries[i], second = entries[i >> (first & 63)];
        const Entry length = (first & 63) + (second & 63);
        const bool both = (first & second & literal) != 0 && length <= window;
        const Entry pair = (first & 0xFF0000) | (second & 0xFF0000) << 8 | literal | two | length;
        entries[i] = both ? pair : first;
    }
}

bool Inflater::build(const uint8_t* lengths, size_t length_count, const uint8_t* distances, size_t distance_count) {
    if (!lengths_.build(lengths, length_count, length_meanings.data()) ||
        !distances_.build(distances, distance_count, distance_meanings.data())) {
        return false;
    }
    lengths_.pair_literals();
    return true;
}

bool Inflater::fixed_tables() {
    std::array<uint8_t, length_symbols> lengths;
    std::fill_n(lengths.begin(), 144, uint8_t{8});
    std::fill(lengths.begin() + 144, lengths.begin() + 256, uint8_t{9});
    std::fill(lengths.begin() + 256, lengths.begin() + 280, uint8_t{7});
    std::fill(lengths.begin() + 280, lengths.end(), uint8_t{8});
    std::array<uint8_t, distance_symbols> distances;
    distances.fill(5);
    return build(lengths.data(), lengths.size(), distances.data(), distances.size());
}

bool Inflater::read_tables(Bits& bits) {
    if (!bits.refill()) return false;
    const size_t lengths = bits.take(5) + 257, distances = bits.take(5) + 1, counts = bits.take(4) + 4;
    if (lengths > 286 || distances > 30) return false;
    std::array<uint8_t, length_symbols + distance_symbols> all{};
    constexpr uint8_t order[count_symbols] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    std::array<uint8_t, count_symbols> first{};
    for (size_t i = 0; i < counts; ++i) {
        if (i % 16 == 0 && !bits.refill()) return false;
        first[order[i]] = static_cast<uint8_t>(bits.take(3));
    }
    if (!counts_.build(first.data(), first.size(), count_meanings.data())) return false;
    for (size_t n = 0; n < lengths + distances;) {
        if (!bits.refill()) return false;
        const Entry entry = counts_[bits.bits];
        if ((entry & literal) == 0) return false;
        bits.drop(entry);
        const unsigned symbol = entry >> 16;
        if (symbol < 16) {
            all[n++] = static_cast<uint8_t>(symbol);
            continue;
        }
        if (symbol == 16 && n == 0) return false;
        const uint8_t value = symbol == 16 ? all[n - 1] : 0;
        const size_t times = symbol == 16 ? 3 + bits.take(2) : symbol == 17 ? 3 + bits.take(3) : 11 + bits.take(7);
        if (times > lengths + distances - n) return false;
        std::fill_n(all.begin() + static_cast<std::ptrdiff_t>(n), times, value);
        n += times;
    }
    // Without an end the block has none.
    return all[256] != 0 && build(all.data(), lengths, all.data() + lengths, distances);
}

namespace {

// A byte or two. Writes two.
inline uint8_t* put(uint32_t entry, uint8_t* out) {
    out[0] = static_cast<uint8_t>(entry >> 16);
    out[1] = static_cast<uint8_t>(entry >> 24);
    return out + 1 + (entry >> two_shift & 1);
}

// Bytes from `distance` before, which may be ones that this writes. May write 16 more.
inline void copy_match(uint8_t* to, size_t distance, size_t length) {
    const uint8_t* from = to - distance;
    uint8_t* const end = to + length;
    if (distance >= 16) {
        do {
            std::memcpy(to, from, 16);
            to += 16;
            from += 16;
        } while (to < end);
    } else if (distance >= 8) {
        do {
            std::memcpy(to, from, 8);
            to += 8;
            from += 8;
        } while (to < end);
    } else if (distance == 1) {
        std::memset(to, *from, length);
    } else {
        do *to++ = *from++;
        while (to < end);
    }
}

}  // namespace

Inflater::Result Inflater::read_block(Bits& given, const uint8_t* begin, uint8_t*& where, const uint8_t* stop) const {
    Bits bits = given;
    uint8_t* out = where;
    while (out < stop) {
        if (!bits.refill()) return Result::damaged;
        Entry entry = lengths_[bits.bits];
        // Three that are in the window leave bits enough for a fourth of any kind, but not for its distance.
        if ((entry & literal) != 0) {
            bits.drop(entry);
            out = put(entry, out);
            entry = lengths_[bits.bits];
            if ((entry & literal) != 0) {
                bits.drop(entry);
                out = put(entry, out);
                entry = lengths_[bits.bits];
                if ((entry & literal) != 0) {
                    bits.drop(entry);
                    out = put(entry, out);
                    entry = lengths_[bits.bits];
                    if ((entry & literal) != 0) {
                        bits.drop(entry);
                        out = put(entry, out);
                        continue;
                    }
                }
            }
        }
        if ((entry & look_on) != 0) {
            bits.drop(entry);
            entry = lengths_.rest(entry, bits.bits);
            if ((entry & literal) != 0) {
                bits.drop(entry);
                out = put(entry, out);
                continue;
            }
        }
        if ((entry & not_a_match) != 0) {
            if ((entry & end_of_block) == 0) return Result::damaged;
            bits.drop(entry);
            if (bits.overran()) return Result::damaged;
            given = bits;
            where = out;
            return Result::short_of_bytes;
        }
        const auto value_of = [&bits](Entry found) {
            const unsigned code = found >> 8 & 15, all = found & 63;
            const uint64_t low = bits.bits & ((uint64_t{1} << all) - 1);
            bits.drop(found);
            return (found >> 16) + static_cast<size_t>(low >> code);
        };
        const size_t length = value_of(entry);
        bits.refill();
        Entry other = distances_[bits.bits];
        if ((other & look_on) != 0) {
            bits.drop(other);
            other = distances_.rest(other, bits.bits);
        }
        if ((other & not_a_match) != 0) return Result::damaged;
        const size_t distance = value_of(other);
        if (distance > static_cast<size_t>(out - begin)) return Result::damaged;
        copy_match(out, distance, length);
        out += length;
    }
    given = bits;
    where = out;
    return Result::filled;
}

Inflater::Result Inflater::run(const uint8_t* packed, size_t size, uint8_t* out, size_t want) {
    constexpr size_t header = 2;
    if (size < header) return Result::damaged;
    const unsigned method = packed[0] & 15u, window = packed[0] >> 4, flags = packed[1];
    const bool has_dictionary = (flags & 0x20) != 0;
    if (method != 8 || window > 7 || has_dictionary || (packed[0] * 256u + flags) % 31 != 0) return Result::damaged;
    Bits bits{packed + header, packed + size};
    uint8_t* const begin = out;
    uint8_t* const stop = out + want;
    for (bool last = false; out < stop;) {
        if (last) return Result::short_of_bytes;
        if (!bits.refill()) return Result::damaged;
        last = bits.take(1) != 0;
        const uint64_t kind = bits.take(2);
        if (kind == 0) {
            // Bytes as they are, from the next whole one on.
            const uint8_t* from = bits.next - (bits.count & 63) / 8;
            if (bits.end < from || bits.end - from < 4) return Result::damaged;
            const size_t length = from[0] | size_t{from[1]} << 8, inverse = from[2] | size_t{from[3]} << 8;
            from += 4;
            const size_t wanted = std::min(length, static_cast<size_t>(stop - out));
            if ((length ^ inverse) != 0xFFFF || wanted > static_cast<size_t>(bits.end - from)) return Result::damaged;
            std::memcpy(out, from, wanted);
            out += wanted;
            bits = {from + wanted, bits.end};
            continue;
        }
        if (!(kind == 1 ? fixed_tables() : kind == 2 && read_tables(bits))) return Result::damaged;
        if (read_block(bits, begin, out, stop) == Result::damaged) return Result::damaged;
    }
    return bits.overran() ? Result::damaged : Result::filled;
}

}  // namespace batchplant
