#include "progressive.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace batchplant {
namespace {

constexpr uint8_t tables_marker = 0xC4, first_restart_marker = 0xD0, end_marker = 0xD9, scan_marker = 0xDA;
constexpr int64_t most_value = 32767;

constexpr size_t divide_up(size_t value, size_t by) { return (value + by - 1) / by; }

}  // namespace

// --- headers ------------------------------------------------------------------------------------------------

void ProgressiveScans::plan(const ProgressiveHeader& header) {
    components_ = header.components;
    mcus_per_row_ = header.mcus_per_row;
    mcu_rows_ = header.mcu_rows;
    restart_interval_ = header.restart_interval;
    for (size_t c = 0; c < components_; ++c) {
        Plane& plane = planes_[c];
        static_cast<ProgressiveComponent&>(plane) = header.component[c];
        plane.stride = mcus_per_row_ * plane.across;
        plane.nonzero.assign(divide_up(plane.end_row, plane.down) * plane.down * plane.stride, 0);
        plane.memory.assign(64 * (plane.end_row - plane.first_row) * (plane.end_column - plane.first_column), 0);
        plane.shifts.fill(-1);
    }
    for (size_t n = 0; n < 4; ++n) {
        has_dc_[n] = header.dc[n] != nullptr;
        has_ac_[n] = header.ac[n] != nullptr;
        if (has_dc_[n]) dc_codes_[n] = *header.dc[n];
        if (has_ac_[n]) ac_codes_[n] = *header.ac[n];
    }
}

bool ProgressiveScans::read_tables(const uint8_t* data, size_t size) {
    constexpr size_t before = 17;  // the number, and the counts
    while (size > 0) {
        if (size < before || (data[0] & ~0x13) != 0) return false;
        const bool is_ac = (data[0] & 0x10) != 0;
        const size_t number = data[0] & 3;
        HuffmanCode& code = is_ac ? ac_codes_[number] : dc_codes_[number];
        code = {};
        size_t symbols = 0;
        for (size_t length = 1; length < before; ++length) symbols += code.counts[length] = data[length];
        if (symbols > code.symbols.size() || symbols > size - before) return false;
        std::copy_n(data + before, symbols, code.symbols.begin());
        (is_ac ? has_ac_ : has_dc_)[number] = true;
        data += before + symbols;
        size -= before + symbols;
    }
    return true;
}

bool ProgressiveScans::read_scan_header(const uint8_t* data, size_t size, Scan& scan) const {
    if (size < 1) return false;
    scan.components = data[0];
    if ((scan.components != 1 && scan.components != components_) || size != 4 + 2 * scan.components) return false;
    for (size_t n = 0; n < scan.components; ++n) {
        const uint8_t id = data[1 + 2 * n], tables = data[2 + 2 * n];
        size_t c = 0;
        while (c < components_ && planes_[c].id != id) ++c;
        const bool in_order = scan.components == 1 || c == n;
        if (c == components_ || !in_order || (tables & ~0x33) != 0) return false;
        scan.component[n] = c;
        scan.dc_table[n] = tables >> 4;
        scan.ac_table[n] = tables & 3;
    }
    const uint8_t* rest = data + 1 + 2 * scan.components;
    scan.first = rest[0];
    scan.last = rest[1];
    scan.before = rest[2] >> 4;
    scan.shift = rest[2] & 15;
    return true;
}

// True if the scan brings only bits that are still missing.
bool ProgressiveScans::check_order(const Scan& scan) {
    const bool dc = scan.first == 0;
    if (dc ? scan.last != 0 : scan.components != 1 || scan.first > scan.last || scan.last > 63) return false;
    constexpr size_t most_shift = 13;
    if (scan.shift > most_shift || (scan.before != 0 && scan.shift + 1 != scan.before)) return false;
    const int before = scan.before == 0 ? -1 : static_cast<int>(scan.before);
    for (size_t n = 0; n < scan.components; ++n) {
        auto& shifts = planes_[scan.component[n]].shifts;
        if (!dc && shifts[0] < 0) return false;
        for (size_t k = scan.first; k <= scan.last; ++k) {
            if (shifts[k] != before) return false;
            shifts[k] = static_cast<int8_t>(scan.shift);
        }
    }
    return true;
}

bool ProgressiveScans::set_tables(const Scan& scan) {
    if (scan.first > 0) {
        const size_t number = scan.ac_table[0];
        return has_ac_[number] && ac_table_.set(ac_codes_[number], false);
    }
    if (scan.before > 0) return true;
    for (size_t n = 0; n < scan.components; ++n) {
        const size_t number = scan.dc_table[n];
        if (!has_dc_[number] || !dc_tables_[number].set(dc_codes_[number], true)) return false;
    }
    return true;
}

bool ProgressiveScans::has_all() const {
    const auto complete = [](const Plane& plane) {
        return std::all_of(plane.shifts.begin(), plane.shifts.end(), [](int8_t shift) { return shift == 0; });
    };
    return std::all_of(planes_.begin(), planes_.begin() + static_cast<std::ptrdiff_t>(components_), complete);
}

bool ProgressiveScans::read(const ProgressiveHeader& header) {
    plan(header);
    // libjpeg is told to refuse more, and says so.
    constexpr size_t most_scans = 500;
    size_t scans = 0;
    for (const uint8_t *at = header.data, *end = header.end;;) {
        // Without an end, rows are missing in the last scan; none that is needed.
        if (at == end) return has_all();
        if (end - at < 2 || at[0] != 0xFF) return false;
        const uint8_t marker = at[1];
        if (marker == end_marker) return has_all();
        if ((marker != tables_marker && marker != scan_marker) || end - at < 4) return false;
        const size_t length = size_t{at[2]} << 8 | at[3];
        at += 2;
        if (length < 2 || length > static_cast<size_t>(end - at)) return false;
        const uint8_t* const data = at + 2;
        at += length;
        if (marker == tables_marker) {
            if (!read_tables(data, length - 2)) return false;
            continue;
        }
        Scan scan{};
        if (++scans > most_scans || !read_scan_header(data, length - 2, scan) || !check_order(scan)) return false;
        at = read_scan(scan, at, end);
        if (at == nullptr) return false;
    }
}

void ProgressiveScans::release() {
    constexpr size_t much = size_t{4} << 20;
    for (Plane& plane : planes_) {
        if (plane.memory.capacity() > much) plane.memory = {};
        if (plane.nonzero.capacity() > much / 4) plane.nonzero = {};
    }
}

// --- scans --------------------------------------------------------------------------------------------------

template <typename Read>
const uint8_t* ProgressiveScans::read_mcus(size_t columns, size_t rows, size_t all_rows, const uint8_t* data,
                                           const uint8_t* end, Read&& read) {
    BitCursor at = bytes_.start(data, end);
    size_t until_restart = restart_interval_;
    uint8_t restarts = 0;
    const auto begin = [&] {
        run_ = 0;
        for (Plane& plane : planes_) plane.prediction = 0;
    };
    begin();
    for (size_t row = 0; row < rows; ++row) {
        for (size_t column = 0; column < columns; ++column) {
            if (restart_interval_ > 0 && until_restart-- == 0) {
                if (!bytes_.ends_with(static_cast<uint8_t>(first_restart_marker + restarts % 8), at)) return nullptr;
                at = bytes_.skip_marker();
                ++restarts;
                until_restart = restart_interval_ - 1;
                begin();
            }
            at = bytes_.feed(at);
            if (!read(at, column, row)) return nullptr;
        }
    }
    at = bytes_.feed(at);
    if (rows == all_rows) return bytes_.ends_with_marker(at) ? bytes_.rest() : nullptr;
    return bytes_.overran(at) ? nullptr : find_marker(bytes_.rest(), end);
}

const uint8_t* ProgressiveScans::read_scan(const Scan& scan, const uint8_t* data, const uint8_t* end) {
    if (!set_tables(scan)) return nullptr;
    Plane& plane = planes_[scan.component[0]];
    if (scan.components == 3) {
        size_t rows = 0;
        for (const Plane& one : planes_) rows = std::max(rows, divide_up(one.end_row, one.down));
        return read_mcus(mcus_per_row_, rows, mcu_rows_, data, end, [&](BitCursor& at, size_t column, size_t row) {
            for (size_t c = 0; c < 3; ++c) {
                Plane& one = planes_[c];
                for (size_t y = row * one.down; y < (row + 1) * one.down; ++y) {
                    for (size_t x = column * one.across; x < (column + 1) * one.across; ++x) {
                        if (!read_dc(at, one, scan, c, x, y)) return false;
                    }
                }
            }
            return true;
        });
    }
    const auto read_plane = [&](auto&& read) {
        return read_mcus(plane.columns, plane.end_row, plane.rows, data, end, read);
    };
    if (scan.first == 0) {
        return read_plane([&](BitCursor& at, size_t x, size_t y) { return read_dc(at, plane, scan, 0, x, y); });
    }
    const auto nonzero = [&plane](size_t x, size_t y) -> uint64_t& { return plane.nonzero[y * plane.stride + x]; };
    if (scan.before == 0) {
        return read_plane([&](BitCursor& at, size_t x, size_t y) {
            if (run_ > 0) {
                --run_;
                return true;
            }
            return read_ac(at, scan, nonzero(x, y), plane.find(x, y));
        });
    }
    return read_plane(
        [&](BitCursor& at, size_t x, size_t y) { return refine_ac(at, scan, nonzero(x, y), plane.find(x, y)); });
}

bool ProgressiveScans::read_dc(BitCursor& at, Plane& plane, const Scan& scan, size_t n, size_t column, size_t row) {
    int16_t* values = plane.find(column, row);
    if (scan.before > 0) {
        at.refill();
        const bool set = static_cast<int64_t>(at.bits) < 0;
        at.drop(1);
        if (set && values != nullptr) values[0] = static_cast<int16_t>(values[0] | 1 << scan.shift);
        return true;
    }
    if (!batchplant::read_dc(at, dc_tables_[scan.dc_table[n]], plane.prediction)) return false;
    const int64_t whole = plane.prediction * (int64_t{1} << scan.shift);
    if (std::abs(whole) > most_value) return false;
    if (values != nullptr) values[0] = static_cast<int16_t>(whole);
    return true;
}

namespace {

// The next symbol: an entry whose value, if it has one, is in it. 0 where the bits mean nothing.
struct AcSymbol {
    HuffmanEntry entry;
    int value;
};

inline AcSymbol read_symbol(BitCursor& at, const HuffmanTable& table) {
    at.refill();
    HuffmanEntry entry = table[at.bits];
    if (kind_of(entry) == HuffmanTable::long_code && (entry = table.find_long(at.bits)) == 0) return {0, 0};
    at.drop(entry);
    const int value = value_of(entry);
    if (kind_of(entry) == HuffmanTable::value_follows) return {entry, at.take_value(static_cast<size_t>(value))};
    return {entry, value};
}

// Number of blocks that end here, this one included.
inline uint64_t read_run(BitCursor& at, HuffmanEntry entry) {
    const size_t size = advance_of(entry);
    if (size == 0) return 1;
    const uint64_t more = at.bits >> (64 - size);
    at.drop(size);
    return (uint64_t{1} << size) + more;
}

// For each byte: the number of its set bits, and their positions, a byte for each.
struct BitTable {
    std::array<uint64_t, 256> places{};
    std::array<uint8_t, 256> counts{};
};
constexpr BitTable bit_table = [] {
    BitTable made;
    for (size_t bits = 0; bits < 256; ++bits) {
        for (uint64_t bit = 0; bit < 8; ++bit) {
            if ((bits >> bit & 1) == 0) continue;
            const uint64_t n = made.counts[bits]++;
            made.places[bits] |= bit << 8 * (std::endian::native == std::endian::little ? n : 7 - n);
        }
    }
    return made;
}();

// Zeros of a block, in the order of scans: one look-up tells how far a run of them leads.
class Places {
public:
    // `end` follows, often enough for any look.
    Places(uint64_t which, size_t end) {
        uint8_t* to = places_;
        for (size_t byte = 0; byte < 8; ++byte) {
            const size_t bits = which >> (8 * byte) & 255;
            constexpr uint64_t each = 0x0808080808080808;
            const uint64_t some = bit_table.places[bits] + each * byte;
            std::memcpy(to, &some, sizeof some);
            to += bit_table.counts[bits];
        }
        std::memset(to, static_cast<int>(end), longest_look);
    }
    const uint8_t* begin() const { return places_; }

private:
    static constexpr size_t longest_look = 16;

    uint8_t places_[64 + longest_look];
};

// The bits that refine what is other than zero already, put by until all of the block's are there.
class Corrections {
public:
    // No block has more than 63 coefficients.
    void take(BitCursor& at, size_t count) {
        // After a symbol, so many are ready.
        constexpr size_t ready = 24;
        while (count > ready) [[unlikely]] {
            at.refill();
            append(at, ready);
            count -= ready;
        }
        append(at, count);
    }

    void apply(uint64_t which, int16_t* values, int step) {
        for (uint64_t bits = bits_ << 1 << (63 - count_); which != 0; bits <<= 1, which &= which - 1) {
            int16_t& value = values[zigzag[static_cast<size_t>(std::countr_zero(which))]];
            const int more = static_cast<int64_t>(bits) < 0 ? step : 0;
            value = static_cast<int16_t>(value + (value < 0 ? -more : more));
        }
    }

private:
    void append(BitCursor& at, size_t count) {
        bits_ = bits_ << count | at.bits >> 1 >> (63 - count);
        at.drop(count);
        count_ += count;
    }

    uint64_t bits_ = 0;
    size_t count_ = 0;
};

}  // namespace

bool ProgressiveScans::read_ac(BitCursor& cursor, const Scan& scan, uint64_t& nonzero, int16_t* values) {
    BitCursor at = cursor;
    uint64_t found = 0;
    for (size_t place = scan.first; place <= scan.last;) {
        const auto [entry, value] = read_symbol(at, ac_table_);
        if (entry == 0) return false;
        if (kind_of(entry) == HuffmanTable::end_of_block) {
            run_ = read_run(at, entry) - 1;
            break;
        }
        place += advance_of(entry);
        if (place > scan.last + 1) return false;
        if (value == 0) continue;
        const int whole = value * (1 << scan.shift);
        if (std::abs(whole) > most_value) return false;
        found |= uint64_t{1} << (place - 1);
        if (values != nullptr) values[zigzag[place - 1]] = static_cast<int16_t>(whole);
    }
    nonzero |= found;
    cursor = at;
    return true;
}

bool ProgressiveScans::refine_ac(BitCursor& cursor, const Scan& scan, uint64_t& nonzero, int16_t* values) {
    const uint64_t band = ((uint64_t{1} << (scan.last - scan.first + 1)) - 1) << scan.first;
    const uint64_t old = nonzero & band;
    const int step = 1 << scan.shift;
    BitCursor at = cursor;
    Corrections corrections;
    size_t place = scan.first;
    if (run_ == 0) {
        Places zeros(band & ~old, scan.last + 1);
        for (const uint8_t* next = zeros.begin(); place <= scan.last;) {
            const auto [entry, value] = read_symbol(at, ac_table_);
            if (entry == 0) return false;
            if (kind_of(entry) == HuffmanTable::end_of_block) {
                run_ = read_run(at, entry);
                break;
            }
            // A new one is 1 or -1, behind so many that stay zero; 0 stands for sixteen of these.
            if (value < -1 || value > 1) return false;
            const size_t skipped = advance_of(entry) - 1;
            const size_t found = next[skipped];
            if (found > scan.last) {
                if (value != 0) return false;
                corrections.take(at, static_cast<size_t>(std::popcount(old >> place)));
                place = found;
                break;
            }
            corrections.take(at, found - place - skipped);
            next += skipped + 1;
            place = found + 1;
            if (value == 0) continue;
            nonzero |= uint64_t{1} << found;
            if (values != nullptr) values[zigzag[found]] = static_cast<int16_t>(value * step);
        }
    }
    if (run_ > 0) {
        at.refill();
        if (place <= scan.last) corrections.take(at, static_cast<size_t>(std::popcount(old >> place)));
        --run_;
    }
    cursor = at;
    if (values != nullptr) corrections.apply(old, values, step);
    return true;
}

}  // namespace batchplant
