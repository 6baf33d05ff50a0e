#include "huffman.hpp"

#include <algorithm>
#include <cstdlib>

namespace batchplant {

bool HuffmanTable::set(const HuffmanCode& code, bool is_dc) {
    if (valid_ && is_dc == is_dc_ && code == code_) return true;
    code_ = code;
    is_dc_ = is_dc;
    has_pairs_ = has_runs_ = false;
    valid_ = build(is_dc);
    return valid_;
}

HuffmanEntry HuffmanTable::entry_of(unsigned symbol, int length) const {
    const auto bits = static_cast<unsigned>(length);
    if (is_dc_) return (bits + symbol) | value_follows << 6 | bits << 8 | (63 - symbol) << 16;
    const unsigned run = symbol >> 4, size = symbol & 15;
    constexpr unsigned longest_run = 15;  // without a value: sixteen zeros
    if (size > 0) return bits | value_follows << 6 | (run + 1) << 8 | size << 16;
    if (run != longest_run) return bits | end_of_block << 6 | run << 8;
    return bits | (run + 1) << 8;
}

bool HuffmanTable::build(bool is_dc) {
    entries_.fill(long_code << 6);
    unsigned code = 0;
    size_t index = 0;
    for (int length = 1; length <= 16; ++length) {
        first_[static_cast<size_t>(length)] = static_cast<int>(index) - static_cast<int>(code);
        for (unsigned n = code_.counts[static_cast<size_t>(length)]; n > 0; --n, ++code, ++index) {
            // No code may be all ones, which also keeps them from having more bits than their length.
            if (index >= code_.symbols.size() || code + 1 >= 1u << length) return false;
            const unsigned symbol = code_.symbols[index];
            if (is_dc && symbol > 15) return false;
            if (length > window) continue;
            const HuffmanEntry entry = entry_of(symbol, length);
            const int rest = window - length;
            HuffmanEntry* place = entries_.data() + (size_t{code} << rest);
            std::fill_n(place, size_t{1} << rest, entry);
            const int size = value_of(entry);
            if (is_dc || kind_of(entry) != value_follows || size > rest) continue;
            // The value too: the same for each of the bits behind it.
            const HuffmanEntry whole = (entry & 0xFF00u) | static_cast<unsigned>(length + size);
            const int same = rest - size;
            for (int bits = 0; bits < 1 << size; ++bits) {
                const int number = bits >> (size - 1) ? bits : bits + 1 - (1 << size);
                std::fill_n(place + (static_cast<size_t>(bits) << same), size_t{1} << same,
                            whole | static_cast<unsigned>(number) << 16);
            }
        }
        limit_[static_cast<size_t>(length)] = code << (16 - length);
        code <<= 1;
    }
    return true;
}

HuffmanEntry HuffmanTable::find_long(uint64_t bits) const {
    const auto ahead = static_cast<uint32_t>(bits >> 48);
    for (int length = window + 1; length <= 16; ++length) {
        if (ahead >= limit_[static_cast<size_t>(length)]) continue;
        const int index = static_cast<int>(ahead >> (16 - length)) + first_[static_cast<size_t>(length)];
        return entry_of(code_.symbols[static_cast<size_t>(index)], length);
    }
    return 0;
}

// Symbol that stands in the window behind so many bits: sizes of its code and of its value, which may be beyond the
// window. Its kind is long_code where the code is not all in there.
struct HuffmanTable::Symbol {
    Kind kind;
    uint64_t code, size, advance;
};

HuffmanTable::Symbol HuffmanTable::symbol_at(size_t index, size_t used) const {
    const HuffmanEntry entry = entries_[(index << used) & (entries - 1)];
    const Kind kind = kind_of(entry);
    Symbol symbol{kind, length_of(entry), 0, advance_of(entry)};
    if (kind == value_follows) symbol.size = static_cast<uint64_t>(value_of(entry));
    if (kind == value) {
        symbol.size = static_cast<uint64_t>(std::bit_width(static_cast<unsigned>(std::abs(value_of(entry)))));
        symbol.code -= symbol.size;
    }
    if (used + symbol.code > window) symbol.kind = long_code;
    return symbol;
}

const uint64_t* HuffmanTable::pairs() {
    if (has_pairs_) return pairs_.data();
    constexpr uint64_t most_size = 9;
    for (size_t i = 0; i < entries; ++i) {
        uint64_t used = 0, first = nowhere, first_value = 0, advance = 0, before = 0, size = 0;
        Symbol symbol = symbol_at(i, 0);
        if (symbol.kind == value) {
            used = symbol.code + symbol.size;
            advance = first = symbol.advance;
            first_value = static_cast<uint16_t>(value_of(entries_[i]));
            symbol = symbol_at(i, used);
        }
        const bool has_value = symbol.kind == value || symbol.kind == value_follows;
        if (has_value && symbol.size <= most_size && used + symbol.code + symbol.size <= most_bits) {
            before = used + symbol.code;
            used = before + symbol.size;
            advance += symbol.advance;
            size = symbol.size;
            symbol = used <= window ? symbol_at(i, used) : Symbol{long_code, 0, 0, 0};
        }
        if (symbol.kind == end_of_block) {
            used += symbol.code;
            advance += ends;
        }
        if (used == 0) advance = stuck;
        pairs_[i] = used | before << 8 | (63 - size) << 16 | first << 24 | first_value << 32 | advance << 48;
    }
    has_pairs_ = true;
    return pairs_.data();
}

const uint16_t* HuffmanTable::runs() {
    if (has_runs_) return runs_.data();
    constexpr uint64_t block_size = 64;
    for (size_t i = 0; i < entries; ++i) {
        uint64_t used = 0, advance = 0;
        while (used < window && advance < ends) {
            const Symbol symbol = symbol_at(i, used);
            const uint64_t bits = used + symbol.code + symbol.size;
            if (symbol.kind == long_code || bits > most_bits || advance + symbol.advance > block_size) break;
            used = bits;
            advance += symbol.kind == end_of_block ? ends : symbol.advance;
        }
        runs_[i] = static_cast<uint16_t>(used | (used == 0 ? stuck : advance) << 6);
    }
    has_runs_ = true;
    return runs_.data();
}

BitCursor ScanBytes::start(const uint8_t* data, const uint8_t* end) {
    source_ = data;
    source_end_ = end;
    at_end_ = overran_ = false;
    last_ = bytes_.data();
    return fill({bytes_.data(), 0, 0});
}

BitCursor ScanBytes::fill(BitCursor at) {
    if (at_end_) {
        // The zeros behind the end are enough for one MCU. They are read again after they were used up.
        if (left(at) >= 0) return at;
        overran_ = true;
        return {last_, 0, 0};
    }
    uint8_t* to = bytes_.data();
    uint8_t* const full = to + capacity;
    const auto kept = static_cast<size_t>(last_ - at.next);
    std::memmove(to, at.next, kept);
    at.next = to;
    to += kept;
    while (to < full) {
        const auto room = static_cast<size_t>(std::min<std::ptrdiff_t>(full - to, source_end_ - source_));
        const void* found = room > 0 ? std::memchr(source_, 0xFF, room) : nullptr;
        const auto plain = found ? static_cast<size_t>(static_cast<const uint8_t*>(found) - source_) : room;
        if (plain > 0) std::memcpy(to, source_, plain);
        to += plain;
        source_ += plain;
        if (!found && source_ < source_end_) break;  // full
        if (source_end_ - source_ < 2 || source_[1] != 0) {
            at_end_ = true;
            break;
        }
        *to++ = 0xFF;
        source_ += 2;
    }
    last_ = to;
    std::memset(to, 0, slack + 16);
    ready_ = at_end_ ? last_ : last_ - slack;
    return at;
}

int64_t ScanBytes::left(const BitCursor& at) const {
    return (last_ - at.next) * 8 + static_cast<int64_t>(at.count & 63);
}

bool ScanBytes::overran(const BitCursor& at) const {
    constexpr int64_t close = 128;
    return overran_ || left(at) < (at_end_ && !at_marker() ? close : 0);
}

bool ScanBytes::ends_with_marker(const BitCursor& at) const {
    const int64_t bits = left(at);
    return at_end_ && !overran_ && bits >= 0 && bits < 8 && at_marker();
}

bool ScanBytes::ends_with(uint8_t marker, const BitCursor& at) const {
    return ends_with_marker(at) && source_[1] == marker;
}

const uint8_t* find_marker(const uint8_t* data, const uint8_t* end) {
    while (end - data >= 2) {
        data = static_cast<const uint8_t*>(std::memchr(data, 0xFF, static_cast<size_t>(end - data - 1)));
        if (data == nullptr) break;
        const bool restarts = (data[1] & ~7) == 0xD0;
        if (data[1] != 0 && data[1] != 0xFF && !restarts) return data;
        data += data[1] == 0xFF ? 1 : 2;
    }
    return end;
}

}  // namespace batchplant
