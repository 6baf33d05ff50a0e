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
    const unsigned run = is_dc_ ? 0 : symbol >> 4, size = is_dc_ ? symbol : symbol & 15;
    constexpr unsigned longest_run = 15;  // without a value: sixteen zeros
    const auto bits = static_cast<unsigned>(length);
    if (size > 0) return bits | value_follows << 6 | (run + 1) << 8 | size << 16;
    if (!is_dc_ && run != longest_run) return bits | end_of_block << 6 | run << 8;
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
            if (kind_of(entry) != value_follows || size > rest) continue;
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

const uint64_t* HuffmanTable::pairs() {
    if (has_pairs_) return pairs_.data();
    for (size_t i = 0; i < entries; ++i) {
        const HuffmanEntry first = entries_[i];
        if (kind_of(first) == end_of_block) {
            pairs_[i] = length_of(first) | ends << 22;
            continue;
        }
        if (kind_of(first) != value) {
            pairs_[i] = stuck << 22;
            continue;
        }
        uint64_t length = length_of(first), advance = advance_of(first);
        const auto bits_of = [](HuffmanEntry entry) { return static_cast<uint64_t>(entry >> 16); };
        const auto size_of = [](HuffmanEntry entry) { return static_cast<uint64_t>(std::abs(value_of(entry))); };
        uint64_t sizes = size_of(first), values = bits_of(first) << 32 | bits_of(first) << 48;
        const HuffmanEntry second = entries_[(i << length) & (entries - 1)];
        if (length + length_of(second) <= window) {
            if (kind_of(second) == value) {
                length += length_of(second);
                advance += advance_of(second);
                sizes += size_of(second);
                values = bits_of(first) << 32 | bits_of(second) << 48;
            } else if (kind_of(second) == end_of_block) {
                length += length_of(second);
                advance += ends;
            }
        }
        pairs_[i] = length | static_cast<uint64_t>(advance_of(first)) << 6 | sizes << 11 | advance << 22 | values;
    }
    has_pairs_ = true;
    return pairs_.data();
}

const uint16_t* HuffmanTable::runs() {
    if (has_runs_) return runs_.data();
    pairs();
    for (size_t i = 0; i < entries; ++i) {
        uint64_t length = pairs_[i] & 63, advance = whole_advance_of(pairs_[i]);
        if (advance < ends) {
            const size_t rest = (i << length) & (entries - 1);
            const uint64_t pair = pairs_[rest];
            const HuffmanEntry entry = entries_[rest];
            if (whole_advance_of(pair) != stuck && length + (pair & 63) <= window) {
                length += pair & 63;
                advance += whole_advance_of(pair);
            } else if (kind_of(entry) == value && length + length_of(entry) <= window) {
                length += length_of(entry);
                advance += advance_of(entry);
            }
        }
        runs_[i] = static_cast<uint16_t>(length | advance << 6);
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
