#include "baseline.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace batchplant {
namespace {

constexpr size_t block_side = 8, block_size = 64;
constexpr uint8_t first_restart_marker = 0xD0, end_marker = 0xD9;

constexpr size_t divide_up(size_t value, size_t by) { return (value + by - 1) / by; }

constexpr size_t bad_place = 1000;

// One symbol, whatever its kind: where the block stands after it (block_size at its end, bad_place where the bits
// mean nothing), and its value. Takes 31 bits at most.
struct Symbol {
    size_t place;
    bool is_value;
    int value;
};

inline Symbol read_symbol(BitCursor& at, const HuffmanTable& table, size_t place) {
    at.refill();
    HuffmanEntry entry = table[at.bits];
    if (kind_of(entry) == HuffmanTable::long_code) {
        entry = table.find_long(at.bits);
        if (entry == 0) return {bad_place, false, 0};
    }
    at.drop(entry);
    if (kind_of(entry) == HuffmanTable::end_of_block) return {block_size, false, 0};
    const int value = value_of(entry);
    const bool follows = kind_of(entry) == HuffmanTable::value_follows;
    return {place + advance_of(entry), true, follows ? at.take_value(static_cast<size_t>(value)) : value};
}

// Ways that a look can end: within the block, at its end, or otherwise, which takes a closer look. A table says of an
// end of block that it leads `ends` further.
inline bool ends_block(size_t next) {
    constexpr size_t ends = HuffmanTable::ends;
    return next == block_size || (next > ends && next < ends + block_size);
}

// Skips the coefficients of a block that is not needed. The cursor is copied, so that it stays in registers.
bool skip_ac(BitCursor& cursor, const HuffmanTable& table, const uint16_t* runs) {
    BitCursor at = cursor;
    size_t place = 1;
    while (place < block_size) {
        at.refill();
        for (int n = 0; n < HuffmanTable::looks_at_once; ++n) {
            const unsigned run = runs[at.bits >> (64 - HuffmanTable::window)];
            const size_t next = place + (run >> 6);
            if (next < block_size) [[likely]] {
                at.drop(run);
                place = next;
                continue;
            }
            if (ends_block(next)) {
                at.drop(run);
                place = block_size;
            } else {
                place = read_symbol(at, table, place).place;
            }
            break;
        }
    }
    cursor = at;
    return place == block_size;
}

// Consumers of the coefficients of a needed block, all but the first. `place` is the position of the block; a pair is
// two of them (HuffmanTable::pairs()), looked up by `bits`, after which it stands at `next`.

// Each goes to its place in a block of zeros.
struct PlacedCoefficients {
    int16_t* values;

    // The second first: where there is none, its place is the first's.
    void add_pair(uint64_t pair, uint64_t bits, size_t place, size_t next) {
        values[zigzag[next - 1]] = static_cast<int16_t>(second_value_of(pair, bits));
        values[zigzag[place + first_advance_of(pair) - 1]] = first_value_of(pair);
    }
    // The end of the block is behind it; there may be neither of them.
    void add_last_pair(uint64_t pair, uint64_t bits, size_t place, size_t next) {
        values[zigzag[next == place ? block_size : next - 1]] = static_cast<int16_t>(second_value_of(pair, bits));
        values[zigzag[place + first_advance_of(pair) - 1]] = first_value_of(pair);
    }
    void add(int value, size_t next) { values[zigzag[next - 1]] = static_cast<int16_t>(value); }
};

// They are listed as CodedPart has them.
struct ListedCoefficients {
    uint16_t* out;
    uint64_t sizes = 0;  // of the values, added up

    static uint16_t entry(size_t next, int value) {
        return static_cast<uint16_t>(static_cast<unsigned>(value) << 6 | zigzag[next - 1]);
    }
    // Values of pairs do not leave ten bits.
    void add_pair(uint64_t pair, uint64_t bits, size_t place, size_t next) {
        const size_t first = place + first_advance_of(pair);
        const int value = first_value_of(pair), second = second_value_of(pair, bits);
        sizes += static_cast<uint64_t>(std::abs(value) + std::abs(second));
        *out = entry(first, value);
        out += static_cast<size_t>(first <= next);
        *out = entry(next, second);
        out += static_cast<size_t>(first != next && place != next);
    }
    void add_last_pair(uint64_t pair, uint64_t bits, size_t place, size_t next) { add_pair(pair, bits, place, next); }
    void add(int value, size_t next) {
        const bool fits = value >= -512 && value < 512;
        sizes += static_cast<uint64_t>(std::abs(value));
        *out++ = entry(next, fits ? value : value & 511);
        if (!fits) *out++ = static_cast<uint16_t>(static_cast<unsigned>(value >> 9) << 6);
    }
};

// Reads a block but for its first coefficient: returns the last one, in the scan's order, that may be other than zero,
// or bad_place. The cursor is copied, as above; so is the sink.
template <typename Sink>
inline size_t read_ac(BitCursor& cursor, const HuffmanTable& table, const uint64_t* pairs, Sink& sink) {
    BitCursor at = cursor;
    Sink to = sink;
    size_t place = 1, last = bad_place;
    while (place < block_size) {
        at.refill();
        for (int n = 0; n < HuffmanTable::looks_at_once; ++n) {
            const uint64_t pair = pairs[at.bits >> (64 - HuffmanTable::window)];
            const size_t next = place + whole_advance_of(pair);
            if (next < block_size) [[likely]] {
                to.add_pair(pair, at.bits, place, next);
                at.drop(pair);
                place = next;
                continue;
            }
            if (ends_block(next)) {
                const size_t end = next % HuffmanTable::ends;
                to.add_last_pair(pair, at.bits, place, end);
                at.drop(pair);
                last = end - 1;
                place = block_size;
            } else {
                const Symbol symbol = read_symbol(at, table, place);
                if (symbol.is_value) to.add(symbol.value, symbol.place);
                if (symbol.place == block_size) last = symbol.is_value ? block_size - 1 : place - 1;
                place = symbol.place;
            }
            break;
        }
    }
    cursor = at;
    sink = to;
    return last;
}

}  // namespace

inline bool BaselineDecoder::read_entries(BitCursor& cursor, const Plane& plane, int16_t first, CodedPart& coded) {
    uint16_t* const begin = coded.entries.data() + coded.entry_count;
    ListedCoefficients listed{begin};
    if (read_ac(cursor, *plane.ac, plane.pairs, listed) == bad_place) return false;
    coded.entry_count += static_cast<size_t>(listed.out - begin);
    if (surely_safe(first, listed.sizes, plane)) return true;
    int16_t values[block_size] = {first};
    for (const uint16_t* one = begin; one < listed.out; ++one) {
        const int value = static_cast<int16_t>(*one) >> 6;
        if (*one % block_size != 0) {
            values[*one % block_size] = static_cast<int16_t>(value);
        } else {
            int16_t& before = values[one[-1] % block_size];
            before = static_cast<int16_t>(before + value * 512);
        }
    }
    return is_safe(values, plane);
}

// True if the transform of a block cannot overflow, by the sum of the sizes of its values.
inline bool BaselineDecoder::surely_safe(int first, uint64_t sizes, const Plane& plane) {
    return static_cast<uint64_t>(std::abs(first)) * plane.steps[0] + sizes * plane.largest_step <= dct_surely_safe;
}

// The same with what the sizes really come to.
bool BaselineDecoder::is_safe(const int16_t* values, const Plane& plane) {
    int sum = 0;
    for (size_t k = 0; k < block_size; ++k) sum += std::abs(values[k] * plane.steps[k]);
    if (sum <= dct_surely_safe) return true;
    if (sum > 32767) return false;
    int16_t products[block_size];
    for (size_t k = 0; k < block_size; ++k) products[k] = static_cast<int16_t>(values[k] * plane.steps[k]);
    return dct_is_safe(products);
}

// --- planning -----------------------------------------------------------------------------------------------

bool BaselineDecoder::set_tables(const BaselineHeader& header) {
    for (size_t c = 0; c < header.components; ++c) {
        const auto& component = header.component[c];
        Plane& plane = planes_[c];
        const HuffmanCode* dc = header.dc[component.dc_table];
        const HuffmanCode* ac = header.ac[component.ac_table];
        if (dc == nullptr || ac == nullptr) return false;
        HuffmanTable& dc_table = dc_tables_[component.dc_table];
        HuffmanTable& ac_table = ac_tables_[component.ac_table];
        if (!dc_table.set(*dc, true) || !ac_table.set(*ac, false)) return false;
        plane.dc = &dc_table;
        plane.ac = &ac_table;
        plane.runs = ac_table.runs();
        plane.pairs = ac_table.pairs();
    }
    return true;
}

bool BaselineDecoder::set_steps(const BaselineHeader& header) {
    for (size_t c = 0; c < header.components; ++c) {
        const auto& component = header.component[c];
        Plane& plane = planes_[c];
        if (component.steps == nullptr) return false;
        plane.largest_step = 0;
        for (size_t k = 0; k < block_size; ++k) {
            const uint16_t step = component.steps[k];
            constexpr uint16_t largest = 255;
            if (step > largest) return false;
            plane.steps[k] = static_cast<int16_t>(step);
            if (k > 0) plane.largest_step = std::max(plane.largest_step, uint64_t{step});
        }
    }
    return true;
}

void BaselineDecoder::Plane::need(size_t left, size_t top, size_t right, size_t bottom) {
    first_column = left / block_side;
    end_column = divide_up(right, block_side);
    first_row = top / block_side;
    end_row = divide_up(bottom, block_side);
    at_left = left == 0;
    at_right = right == width;
    stride = (end_column - first_column) * block_side + jpeg_overrun;
    const size_t size = jpeg_overrun + (1 + down * block_side) * stride + jpeg_overrun;
    if (memory.size() < size) memory.resize(size);
}

void BaselineDecoder::plan(const BaselineHeader& header, const Part& part) {
    mcu_height_ = header.down * block_side;
    mcus_per_row_ = divide_up(header.width, header.across * block_side);
    mcu_rows_ = divide_up(header.height, mcu_height_);
    restart_interval_ = until_restart_ = header.restart_interval;
    next_restart_ = 0;
    const bool coloured = header.components == 3 && part.channels == 3;
    in_between_ = coloured && header.down == 2;

    block_count_ = 0;
    for (size_t c = 0; c < header.components; ++c) {
        Plane& plane = planes_[c];
        plane.across = c == 0 ? header.across : 1;
        plane.down = c == 0 ? header.down : 1;
        plane.width = c == 0 ? header.width : divide_up(header.width, header.across);
        plane.height = c == 0 ? header.height : divide_up(header.height, header.down);
        for (size_t y = 0; y < plane.down; ++y) {
            for (size_t x = 0; x < plane.across; ++x) blocks_[block_count_++] = {&plane, x, y};
        }
        if (c == 0) {
            plane.need(part.left, part.top, part.right, part.bottom);
        } else if (!coloured) {
            plane.need(0, 0, 0, 0);
        } else {
            // If colour has half as many samples, pixel 2 i is a blend of i and i - 1, 2 i + 1 of i and i + 1.
            const auto from = [](size_t pixel, size_t factor) {
                return factor == 1 ? pixel : std::max<size_t>((pixel + 1) / 2, 1) - 1;
            };
            const auto to = [](size_t pixel, size_t factor, size_t all) {
                return factor == 1 ? pixel : std::min(pixel / 2 + 1, all);
            };
            plane.need(from(part.left, header.across), from(part.top, header.down),
                       to(part.right, header.across, plane.width), to(part.bottom, header.down, plane.height));
        }
    }
    for (auto& row : widened_) {
        const size_t size = part.right - part.left + 4 + 2 * jpeg_overrun;
        if (row.size() < size) row.resize(size);
    }
}

// --- reading ------------------------------------------------------------------------------------------------

template <bool any_needed>
bool BaselineDecoder::read_mcus(size_t from, size_t to, size_t mcu_row) {
    BitCursor at = at_;
    for (size_t mcu = from; mcu < to; ++mcu) {
        if (restart_interval_ > 0) {
            if (until_restart_ == 0) {
                if (!scan_.ends_with(static_cast<uint8_t>(first_restart_marker + next_restart_), at)) return false;
                at = scan_.skip_marker();
                next_restart_ = (next_restart_ + 1) % 8;
                until_restart_ = restart_interval_;
                for (Plane& plane : planes_) plane.prediction = 0;
            }
            --until_restart_;
        }
        at = scan_.feed(at);
        for (size_t n = 0; n < block_count_; ++n) {
            const Block& block = blocks_[n];
            Plane& plane = *block.plane;
            if (!read_dc(at, *plane.dc, plane.prediction)) return false;
            const size_t column = mcu * plane.across + block.across, row = mcu_row * plane.down + block.down;
            const bool needed = any_needed && column >= plane.first_column && column < plane.end_column &&
                                row >= plane.first_row && row < plane.end_row;
            if (!needed) {
                if (!skip_ac(at, *plane.ac, plane.runs)) return false;
                continue;
            }
            constexpr int64_t most_dc = 32767;
            if (std::abs(plane.prediction) > most_dc) return false;
            if (coded_ != nullptr) {
                const auto first = static_cast<int16_t>(plane.prediction);
                const auto c = static_cast<size_t>(&plane - planes_.data());
                const auto start = static_cast<uint32_t>(coded_->entry_count);
                if (!read_entries(at, plane, first, *coded_)) return false;
                const auto count = static_cast<uint16_t>(coded_->entry_count - start);
                const size_t number = (row - plane.first_row) * (plane.end_column - plane.first_column);
                blocks_of_[c][number + column - plane.first_column] = {start, count, first};
                continue;
            }
            int16_t* const values = pending_.values[pending_.count];
            std::memset(values, 0, block_size * sizeof *values);
            values[0] = static_cast<int16_t>(plane.prediction);
            PlacedCoefficients placed{values};
            const size_t last = read_ac(at, *plane.ac, plane.pairs, placed);
            if (last == bad_place) return false;
            uint8_t* dst = plane.row(1 + block.down * block_side) + (column - plane.first_column) * block_side;
            if (!transform_later(plane, values, last, dst)) return false;
        }
    }
    at_ = at;
    return true;
}

bool BaselineDecoder::transform_later(const Plane& plane, const int16_t* values, size_t last, uint8_t* dst) {
    pending_.planes[pending_.count] = &plane;
    pending_.blocks[pending_.count] = {values, plane.steps.data(), last, dst, plane.stride};
    return ++pending_.count < Pending::most || transform_pending();
}

bool BaselineDecoder::transform_pending() {
    const size_t count = std::exchange(pending_.count, 0);
    for (size_t n = 0; n < count; ++n) {
        const int16_t* values = pending_.blocks[n].coefficients;
        const Plane& plane = *pending_.planes[n];
        const uint64_t sizes = kernels_.sum_sizes(values) - static_cast<uint64_t>(std::abs(values[0]));
        if (!surely_safe(values[0], sizes, plane) && !is_safe(values, plane)) return false;
    }
    kernels_.transform(pending_.blocks.data(), count);
    return true;
}

bool BaselineDecoder::read_row(size_t mcu_row) {
    size_t from = mcus_per_row_, to = 0;
    for (const Plane& plane : planes_) {
        if (plane.end_row <= mcu_row * plane.down || plane.first_row >= (mcu_row + 1) * plane.down) continue;
        from = std::min(from, plane.first_column / plane.across);
        to = std::max(to, divide_up(plane.end_column, plane.across));
    }
    if (from >= to) from = to = mcus_per_row_;
    if (!read_mcus<false>(0, from, mcu_row) || !read_mcus<true>(from, to, mcu_row) ||
        !read_mcus<false>(to, mcus_per_row_, mcu_row) || scan_.overran(at_) || !transform_pending()) {
        return false;
    }
    // libjpeg refuses those that leave 32 bits, which takes more than a row.
    constexpr int64_t most_prediction = 1 << 20;
    return std::all_of(planes_.begin(), planes_.end(),
                       [](const Plane& plane) { return std::abs(plane.prediction) <= most_prediction; });
}

// --- progressive images -----------------------------------------------------------------------------------

bool BaselineDecoder::read_scans(const BaselineHeader& header) {
    ProgressiveHeader all;
    all.components = header.components;
    for (size_t c = 0; c < header.components; ++c) {
        const Plane& plane = planes_[c];
        ProgressiveComponent& one = all.component[c];
        one.id = header.component[c].id;
        one.across = plane.across;
        one.down = plane.down;
        one.columns = divide_up(plane.width, block_side);
        one.rows = divide_up(plane.height, block_side);
        one.first_column = plane.first_column;
        one.end_column = plane.end_column;
        one.first_row = plane.first_row;
        one.end_row = plane.end_row;
        // Colours are read also where only the brightness is needed: libjpeg notices damage in them, too.
        if (plane.end_row == 0) one.end_row = std::min(one.rows, divide_up(planes_[0].end_row, planes_[0].down));
    }
    all.dc = header.dc;
    all.ac = header.ac;
    all.mcus_per_row = mcus_per_row_;
    all.mcu_rows = mcu_rows_;
    all.restart_interval = restart_interval_;
    all.data = header.data;
    all.end = header.end;
    return scans_.read(all);
}

// As read_row() for a sequential image, but with coefficients that are already decoded.
bool BaselineDecoder::place_row(size_t mcu_row) {
    for (size_t c = 0; c < planes_.size(); ++c) {
        Plane& plane = planes_[c];
        const size_t top = mcu_row * plane.down;
        const size_t from = std::max(top, plane.first_row), to = std::min(top + plane.down, plane.end_row);
        for (size_t row = from; row < to; ++row) {
            uint8_t* dst = plane.row(1 + (row - top) * block_side);
            for (size_t column = plane.first_column; column < plane.end_column; ++column, dst += block_side) {
                const int16_t* values = scans_.values(c, column, row);
                if (!transform_later(plane, values, scans_.last(c, column, row), dst)) return false;
            }
        }
    }
    return transform_pending();
}

// --- writing ------------------------------------------------------------------------------------------------

// So that the first and the last sample have a neighbour.
void BaselineDecoder::Plane::repeat_edges() {
    for (size_t y = 1; y <= down * block_side; ++y) {
        uint8_t* samples = row(y);
        if (at_left) samples[-1] = samples[0];
        if (at_right) {
            uint8_t* end = samples + (width - first_column * block_side);
            end[0] = end[-1];
        }
    }
}

void BaselineDecoder::Plane::keep_last_row() { std::memcpy(row(0) - 1, row(down * block_side) - 1, stride); }

// A row of colour, as wide as the brightness. Rows are counted from one, row 0 being that before the MCU row.
const uint8_t* BaselineDecoder::colour_row(Plane& plane, size_t y, size_t mcu_row, const Part& part,
                                           std::vector<uint8_t>& memory) {
    const size_t origin = plane.first_column * block_side, above = mcu_row * block_side;
    if (planes_[0].across == 1) return plane.row(y + 1 - above) + part.left - origin;
    const size_t first = part.left / 2, count = divide_up(part.right, 2) - first;
    const auto samples = [&](size_t row) { return plane.row(row + 1 - above) + first - origin; };
    if (planes_[0].down == 1) {
        kernels_.widen(samples(y), memory.data(), count);
    } else {
        const size_t near = y / 2;
        const size_t far = y % 2 == 0 ? std::max<size_t>(near, 1) - 1 : std::min(near + 1, plane.height - 1);
        kernels_.widen_between(samples(near), samples(far), memory.data(), count);
    }
    return memory.data() + part.left % 2;
}

void BaselineDecoder::write_row(size_t y, size_t mcu_row, const Part& part, uint8_t* dst) {
    Plane& plane = planes_[0];
    const size_t width = part.right - part.left;
    const uint8_t* light = plane.row(y + 1 - mcu_row * mcu_height_) + part.left - plane.first_column * block_side;
    if (part.channels == 1) {
        std::memcpy(dst, light, width);
    } else if (planes_[1].end_column == 0) {
        kernels_.gray_to_rgb(light, dst, width);
    } else {
        const uint8_t* blue = colour_row(planes_[1], y, mcu_row, part, widened_[0]);
        const uint8_t* red = colour_row(planes_[2], y, mcu_row, part, widened_[1]);
        kernels_.to_rgb(light, blue, red, dst, width);
    }
}

void BaselineDecoder::write_rows(size_t mcu_row, const Part& part) {
    size_t from = mcu_row * mcu_height_, to = from + mcu_height_;
    if (in_between_) {
        // The last row waits for the colours of the next MCU row.
        if (mcu_row > 0) --from;
        if (mcu_row + 1 < mcu_rows_) --to;
    }
    from = std::max(from, part.top);
    to = std::min(to, part.bottom);
    const size_t stride = (part.right - part.left) * part.channels;
    for (size_t y = from; y < to; ++y) write_row(y, mcu_row, part, part.pixels + (y - part.top) * stride);
}

// ------------------------------------------------------------------------------------------------------------

bool BaselineDecoder::can(const BaselineHeader& header) {
    // libjpeg does not interpolate colours of so narrow an image.
    const bool narrow = header.across == 2 && header.width <= 4;
    if (narrow || !set_steps(header) || (!header.progressive && !set_tables(header))) return false;
    for (Plane& plane : planes_) plane.prediction = 0, plane.end_column = plane.end_row = 0;
    return true;
}

// Rows of MCUs.
size_t BaselineDecoder::rows_to_read(size_t bottom) const {
    const size_t last_row = bottom - 1, rows = last_row / mcu_height_ + 1;
    // libjpeg reads ahead for two rows, though one of them needs it.
    const bool ahead = in_between_ && last_row % mcu_height_ >= mcu_height_ - 2;
    return ahead ? std::min(rows + 1, mcu_rows_) : rows;
}

// Number of blocks that are needed.
template <typename Found>
size_t BaselineDecoder::tell_extents(Found& found) const {
    size_t blocks = 0;
    for (size_t c = 0; c < 3; ++c) {
        const Plane& plane = planes_[c];
        found.extents[c] = {plane.first_column, plane.end_column - plane.first_column, plane.first_row,
                            plane.end_row - plane.first_row};
        std::copy(plane.steps.begin(), plane.steps.end(), found.steps[c].begin());
        blocks += found.extents[c].blocks();
    }
    return blocks;
}

bool BaselineDecoder::code(const BaselineHeader& header, size_t left, size_t top, size_t right, size_t bottom,
                           CodedPart& coded) {
    if (header.components != 3 || !can(header)) return false;
    plan(header, {left, top, right, bottom, 3, nullptr});
    at_ = scan_.start(header.data, header.end);
    coded.entry_count = 0;
    coded.blocks.resize(tell_extents(coded));
    blocks_of_[0] = coded.blocks.data();
    for (size_t c = 1; c < 3; ++c) blocks_of_[c] = blocks_of_[c - 1] + coded.extents[c - 1].blocks();
    // Largest number of entries of an MCU: each of its values may take two.
    constexpr size_t most_entries = 6 * 2 * block_size;
    struct Coding {  // also when it fails
        CodedPart*& to;
        ~Coding() { to = nullptr; }
    } coding{coded_ = &coded};
    for (size_t row = 0, rows = rows_to_read(bottom); row < rows; ++row) {
        const size_t room = coded.entry_count + mcus_per_row_ * most_entries;
        if (coded.entries.size() < room) coded.entries.resize(room + room / 2);
        if (!read_row(row)) return false;
    }
    return bottom < header.height || scan_.ends_with(end_marker, at_);
}

bool BaselineDecoder::scan(const BaselineHeader& header, size_t left, size_t top, size_t right, size_t bottom,
                           ScanPart& scan) {
    if (header.components != 3 || header.restart_interval > 0 || !can(header)) return false;
    const auto& component = header.component;
    const auto same = [&](const auto& codes, size_t one, size_t other) { return *codes[one] == *codes[other]; };
    if (!same(header.dc, component[1].dc_table, component[2].dc_table) ||
        !same(header.ac, component[1].ac_table, component[2].ac_table)) {
        return false;
    }
    plan(header, {left, top, right, bottom, 3, nullptr});
    tell_extents(scan);
    for (const size_t c : {0, 1}) {
        scan.codes[2 * c] = *header.dc[component[c].dc_table];
        scan.codes[2 * c + 1] = *header.ac[component[c].ac_table];
    }
    scan.mcus_per_row = mcus_per_row_;
    scan.mcu_rows = rows_to_read(bottom);
    scan.to_the_end = bottom == header.height;
    // As in ScanBytes, all at once.
    const auto size = static_cast<size_t>(header.end - header.data);
    scan.words.resize(size / sizeof(uint32_t) + 3);
    auto* const bytes = reinterpret_cast<uint8_t*>(scan.words.data());
    uint8_t* to = bytes;
    for (const uint8_t* from = header.data;;) {
        const auto* found =
            static_cast<const uint8_t*>(std::memchr(from, 0xFF, static_cast<size_t>(header.end - from)));
        if (found == nullptr || header.end - found < 2) return false;
        to = std::copy(from, found, to);
        if (found[1] == end_marker) break;
        if (found[1] != 0) return false;
        *to++ = 0xFF;
        from = found + 2;
    }
    const auto count = static_cast<size_t>(to - bytes);
    scan.bits = 8 * count;
    scan.words.resize(divide_up(count, sizeof(uint32_t)) + 2);
    std::memset(to, 0, scan.words.size() * sizeof(uint32_t) - count);
    if constexpr (std::endian::native == std::endian::little) {
        for (uint32_t& word : scan.words) word = __builtin_bswap32(word);
    }
    return true;
}

bool BaselineDecoder::decode(const BaselineHeader& header, size_t left, size_t top, size_t right, size_t bottom,
                             size_t channels, uint8_t* pixels) {
    if (!can(header)) return false;
    const Part part{left, top, right, bottom, channels, pixels};
    plan(header, part);
    pending_.count = 0;
    struct Done {  // also when it fails
        ProgressiveScans& scans;
        ~Done() { scans.release(); }
    } done{scans_};
    if (header.progressive) {
        if (!read_scans(header)) return false;
    } else {
        at_ = scan_.start(header.data, header.end);
    }
    for (size_t row = 0, rows = rows_to_read(bottom); row < rows; ++row) {
        if (in_between_ && row > 0) {
            for (Plane& plane : planes_) plane.keep_last_row();
        }
        if (!(header.progressive ? place_row(row) : read_row(row))) return false;
        if ((row + 1) * mcu_height_ < top) continue;
        for (size_t c = 1; c < header.components && header.across == 2; ++c) {
            if (planes_[c].end_column > 0) planes_[c].repeat_edges();
        }
        write_rows(row, part);
    }
    return header.progressive || bottom < header.height || scan_.ends_with(end_marker, at_);
}

}  // namespace batchplant
