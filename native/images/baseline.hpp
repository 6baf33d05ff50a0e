#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "huffman.hpp"
#include "progressive.hpp"
#include "../kernels/jpeg_kernels.hpp"

namespace batchplant {

// The header of a JPEG of a common kind, as libjpeg read it: Huffman-coded, 8 bits; sequential with one scan, or
// progressive.
struct BaselineHeader {
    struct Component {
        const uint16_t* steps = nullptr;  // of quantization, in rows
        uint8_t id = 0;
        size_t dc_table = 0, ac_table = 0;
    };

    bool progressive = false;
    size_t width = 0, height = 0;
    size_t components = 0;  // 1, or 3 for YCbCr
    // Blocks of brightness for one of each colour: 1 x 1, 2 x 1 or 2 x 2.
    size_t across = 1, down = 1;
    std::array<Component, 3> component;
    std::array<const HuffmanCode*, 4> dc{}, ac{};  // null where the image has none
    size_t restart_interval = 0;                   // in MCUs; 0 for none
    const uint8_t* data = nullptr;                 // of the scan; in a progressive image the marker before it
    const uint8_t* end = nullptr;
};

// Coefficients of the blocks that a part of an image needs, before any arithmetic, for a device that does the rest.
struct CodedPart {
    struct Block {
        uint32_t start;  // of its entries
        uint16_t count;
        int16_t first;  // its first coefficient, which has no entry
    };
    // Needed part of a component, in blocks of the image.
    struct Extent {
        size_t first_column = 0, columns = 0, first_row = 0, rows = 0;

        size_t blocks() const { return columns * rows; }
    };

    std::vector<Block> blocks;  // component after component, each in rows
    // A coefficient other than zero: its value times 64, and its place in the rows of the block. One that leaves ten
    // bits is two entries: the low nine bits, and the others with the place 0.
    std::vector<uint16_t> entries;
    size_t entry_count = 0;
    std::array<Extent, 3> extents;
    std::array<std::array<uint8_t, 64>, 3> steps;  // of quantization, in rows
};

// A scan for a device that reads it itself: its bits, and what has to be known to read them.
struct ScanPart {
    std::array<CodedPart::Extent, 3> extents;
    std::array<std::array<uint8_t, 64>, 3> steps;
    // Tables of first coefficients and of all others: of the brightness, then of the colours.
    std::array<HuffmanCode, 4> codes;
    std::vector<uint32_t> words;  // the first bit is the highest; two words of zeros are behind the last
    size_t bits = 0;
    size_t mcus_per_row = 0, mcu_rows = 0;
    bool to_the_end = false;  // all bits have to be read
};

// Decodes such images, or a part of one, to the very pixels that libjpeg gives. What is left and right of the
// part or above it is read but neither stored nor transformed; what is below it is not read.
// Keeps its tables and rows from image to image. Not for two threads at once.
class BaselineDecoder {
public:
    explicit BaselineDecoder(const JpegKernels& kernels) : kernels_(kernels) {}

    // Writes columns left to right - 1 of rows top to bottom - 1, which lie in the image, as 1 or 3 channels,
    // and may write jpeg_overrun * 3 bytes more than these.
    // Returns false where anything at all is out of the ordinary, in those rows that libjpeg would read for the
    // part, and at the bottom also in what follows: libjpeg then decides what to make of it.
    bool decode(const BaselineHeader& header, size_t left, size_t top, size_t right, size_t bottom, size_t channels,
                uint8_t* pixels);

    // The same without the transform and all that follows, of sequential images with three components. False also
    // where decode() would return false.
    bool code(const BaselineHeader& header, size_t left, size_t top, size_t right, size_t bottom, CodedPart& coded);

    // The same without reading the bits. False also where the scan has restarts, or the two colours other tables.
    bool scan(const BaselineHeader& header, size_t left, size_t top, size_t right, size_t bottom, ScanPart& scan);

private:
    // One component: the blocks of it that are needed, and the rows of the MCU row at hand.
    struct Plane {
        const HuffmanTable* dc = nullptr;
        const HuffmanTable* ac = nullptr;
        const uint16_t* runs = nullptr;
        const uint64_t* pairs = nullptr;
        alignas(16) std::array<int16_t, 64> steps;
        uint64_t largest_step = 0;  // but for the first
        int64_t prediction = 0;
        size_t across = 1, down = 1;  // blocks in an MCU
        size_t width = 0, height = 0;
        size_t first_column = 0, end_column = 0, first_row = 0, end_row = 0;  // blocks needed
        bool at_left = false, at_right = false;                               // what is needed reaches the edge
        // Rows `stride` apart, beginning with column first_column * 8. Row 0 is the last of the MCU row before.
        std::vector<uint8_t> memory;
        size_t stride = 0;

        void need(size_t left, size_t top, size_t right, size_t bottom);
        uint8_t* row(size_t number) { return memory.data() + jpeg_overrun + number * stride; }
        void repeat_edges();
        void keep_last_row();
    };

    // A block of an MCU.
    struct Block {
        Plane* plane;
        size_t across, down;
    };

    // Blocks to be transformed, some at a time: a vector that is loaded right after its values were stored one by one
    // waits for all of them.
    struct Pending {
        static constexpr size_t most = 8;
        alignas(32) int16_t values[most][64 + 16];  // in rows; one more place for what leaves the block
        std::array<DctBlock, most> blocks;
        std::array<const Plane*, most> planes;
        size_t count = 0;
    };

    struct Part {
        size_t left, top, right, bottom, channels;
        uint8_t* pixels;
    };

    static bool read_entries(BitCursor& cursor, const Plane& plane, int16_t first, CodedPart& coded);
    static bool surely_safe(int first, uint64_t sizes, const Plane& plane);
    static bool is_safe(const int16_t* values, const Plane& plane);
    bool can(const BaselineHeader& header);
    size_t rows_to_read(size_t bottom) const;
    template <typename Found>
    size_t tell_extents(Found& found) const;
    bool set_tables(const BaselineHeader& header);
    bool set_steps(const BaselineHeader& header);
    void plan(const BaselineHeader& header, const Part& part);
    bool read_row(size_t mcu_row);
    bool read_scans(const BaselineHeader& header);
    bool place_row(size_t mcu_row);
    template <bool any_needed>
    bool read_mcus(size_t from, size_t to, size_t mcu_row);
    bool transform_later(const Plane& plane, const int16_t* values, size_t last, uint8_t* dst);
    bool transform_pending();
    void write_rows(size_t mcu_row, const Part& part);
    void write_row(size_t y, size_t mcu_row, const Part& part, uint8_t* dst);
    const uint8_t* colour_row(Plane& plane, size_t y, size_t mcu_row, const Part& part, std::vector<uint8_t>& memory);

    const JpegKernels& kernels_;
    std::array<HuffmanTable, 4> dc_tables_, ac_tables_;
    std::array<Plane, 3> planes_;
    std::array<Block, 6> blocks_;
    std::array<std::vector<uint8_t>, 2> widened_;
    ScanBytes scan_;
    ProgressiveScans scans_;
    Pending pending_;
    CodedPart* coded_ = nullptr;  // where blocks go that are not transformed
    std::array<CodedPart::Block*, 3> blocks_of_{};

    // State of the current image.
    BitCursor at_;
    size_t block_count_ = 0;
    size_t mcus_per_row_ = 0, mcu_rows_ = 0, mcu_height_ = 0;
    size_t restart_interval_ = 0, until_restart_ = 0, next_restart_ = 0;
    bool in_between_ = false;  // rows need those of the next MCU row
};

}  // namespace batchplant
