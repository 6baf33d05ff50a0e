#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "huffman.hpp"

namespace batchplant {

// A component of a progressive JPEG: what it has, and which of its blocks are needed.
struct ProgressiveComponent {
    uint8_t id = 0;
    size_t across = 1, down = 1;                                          // blocks in an MCU
    size_t columns = 0, rows = 0;                                         // blocks in all
    size_t first_column = 0, end_column = 0, first_row = 0, end_row = 0;  // blocks needed
};

struct ProgressiveHeader {
    size_t components = 0;  // 1 or 3
    std::array<ProgressiveComponent, 3> component;
    std::array<const HuffmanCode*, 4> dc{}, ac{};  // those before the first scan; null where there is none
    size_t mcus_per_row = 0, mcu_rows = 0;
    size_t restart_interval = 0;    // in MCUs; 0 for none
    const uint8_t* data = nullptr;  // the marker of the first scan
    const uint8_t* end = nullptr;
};

// Reads the coefficients of a progressive JPEG, which come in about ten scans: first some bits of each, then one more
// in each scan that refines them. How a block is refined depends on which of its coefficients are other than zero
// already. So that is kept of all blocks, and the values of those that are needed. Each scan is read down to the last
// row that is needed.
// Keeps its tables and, unless it is large, its memory from image to image. Not for two threads at once.
class ProgressiveScans {
public:
    // False where anything at all is out of the ordinary in what was read: libjpeg then decides what to make of it.
    bool read(const ProgressiveHeader& header);

    // The coefficients of a block that is needed, in rows.
    const int16_t* values(size_t component, size_t column, size_t row) const {
        return planes_[component].values_at(column, row);
    }
    // The last one, in the order of scans, that may be other than zero.
    size_t last(size_t component, size_t column, size_t row) const {
        const Plane& plane = planes_[component];
        return 63 - static_cast<size_t>(std::countl_zero(plane.nonzero[row * plane.stride + column] | 1));
    }

    // Gives memory back where a large image took much.
    void release();

private:
    struct Plane : ProgressiveComponent {
        std::vector<int16_t> memory;    // 64 values of each block that is needed
        std::vector<uint64_t> nonzero;  // of each block in the rows that are read: a bit for each coefficient
        size_t stride = 0;              // blocks of a row, those that fill up the last MCU included
        int64_t prediction = 0;
        std::array<int8_t, 64> shifts;  // of each coefficient: how many bits are still to come; -1 before the first

        size_t index(size_t column, size_t row) const {
            return (row - first_row) * (end_column - first_column) + column - first_column;
        }
        const int16_t* values_at(size_t column, size_t row) const { return memory.data() + 64 * index(column, row); }
        // Null for a block that is not needed.
        int16_t* find(size_t column, size_t row) {
            const bool needed = column >= first_column && column < end_column && row >= first_row && row < end_row;
            return needed ? memory.data() + 64 * index(column, row) : nullptr;
        }
    };

    struct Scan {
        std::array<size_t, 3> component, dc_table, ac_table;
        size_t components, first, last, before, shift;
    };

    void plan(const ProgressiveHeader& header);
    bool read_tables(const uint8_t* data, size_t size);
    bool read_scan_header(const uint8_t* data, size_t size, Scan& scan) const;
    bool check_order(const Scan& scan);
    bool set_tables(const Scan& scan);
    // Address of the next marker, or `end`; null if anything is out of the ordinary.
    const uint8_t* read_scan(const Scan& scan, const uint8_t* data, const uint8_t* end);
    template <typename Read>
    const uint8_t* read_mcus(size_t columns, size_t rows, size_t all_rows, const uint8_t* data, const uint8_t* end,
                             Read&& read);
    bool read_dc(BitCursor& at, Plane& plane, const Scan& scan, size_t n, size_t column, size_t row);
    bool read_ac(BitCursor& cursor, const Scan& scan, uint64_t& nonzero, int16_t* values);
    bool refine_ac(BitCursor& cursor, const Scan& scan, uint64_t& nonzero, int16_t* values);
    bool has_all() const;

    std::array<Plane, 3> planes_;
    size_t components_ = 0, mcus_per_row_ = 0, mcu_rows_ = 0, restart_interval_ = 0;
    std::array<HuffmanCode, 4> dc_codes_, ac_codes_;
    std::array<bool, 4> has_dc_{}, has_ac_{};
    std::array<HuffmanTable, 4> dc_tables_;
    HuffmanTable ac_table_;
    ScanBytes bytes_;
    uint64_t run_ = 0;  // blocks to come in which the scan has nothing new
};

}  // namespace batchplant
