#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "coverage.hpp"
#include "../kernels/kernels.hpp"
#include "output.hpp"

namespace batchplant {

// nearest:  the pixel under the middle of the result, as Pillow's NEAREST
// area:     as OpenCV's INTER_AREA: the mean of what a result pixel covers, where both sides shrink; a blend of
//           two neighbours on each side where one grows
// bilinear, bicubic: as Pillow's: antialiased where a side shrinks, two rounded passes. Like Pillow's they see
//           the pixels around the box.
enum class Filter { nearest, area, bilinear, bicubic };

struct Box {
    double x0 = 0, y0 = 0, x1 = 0, y1 = 0;

    double width() const { return x1 - x0; }
    double height() const { return y1 - y0; }
};

// Columns left to right - 1 of rows top to bottom - 1.
struct Region {
    size_t left = 0, top = 0, right = 0, bottom = 0;

    size_t width() const { return right - left; }
    size_t height() const { return bottom - top; }
};

// Pixels of a region of an image, HWC, borrowed.
struct PixelView {
    const uint8_t* pixels = nullptr;
    size_t stride = 0;
    Region region;
    const uint8_t* end = nullptr;  // of the memory that may be read, at the earliest the end of the last row
};

// Crops, resizes and flips in one go. One for each thread: it keeps its tables and rows from image to
// image, so that after the first few nothing is allocated.
class Resampler {
public:
    explicit Resampler(const Kernels& kernels = best_kernels()) : kernels_(kernels) {}

    struct Task {
        size_t source_width, source_height;
        Box box;  // inside the source, not empty
        size_t width, height, channels;
        Filter filter;
        bool flip;  // left to right, after all else
    };

    // Works out the weights, and which part of the source they need.
    Region plan(const Task& task);

    // Resamples as planned. The view holds at least the region that plan() named.
    void run(const PixelView& source, const RowWriter& writer);

private:
    enum class Method { copy, nearest, bytes, fine, linear };

    // Mapping from one axis of the source to that of the result.
    struct Side {
        double from, to;  // in the source
        size_t source, result, channels;
        Filter filter;
        bool flip;
        Method method;

        bool operator==(const Side&) const = default;
        bool copies() const;
    };

    void plan_columns(const Side& side);
    void plan_rows(const Side& side);
    void set_taps(const Side& side);
    void set_fine_taps(const Side& side);
    void set_linear_taps(const Side& side);
    const uint8_t* readable_row(const PixelView& source, size_t row);

    void copy(const PixelView& source, const RowWriter& writer);
    void pick(const PixelView& source, const RowWriter& writer);
    void blend_bytes(const PixelView& source, const RowWriter& writer);
    void blend_fine(const PixelView& source, const RowWriter& writer);
    void blend_linear(const PixelView& source, const RowWriter& writer);

    // The last few source rows after the horizontal pass, as many as one result row needs.
    template <typename Value>
    struct Ring {
        std::vector<Value> values;
        std::vector<const Value*> rows;  // under the result row at hand
        size_t next = 0;                 // source row
    };
    // Values of a row in the ring: a multiple of a register, because stores across two are slow.
    size_t ring_length() const { return (task_.width * task_.channels + overrun + 31) / 32 * 32; }
    template <typename Value>
    void start(Ring<Value>& ring) const;
    template <typename Value, typename Across>
    void make_rows(const PixelView& source, size_t y, Ring<Value>& ring, Across across);

    const Kernels& kernels_;
    Task task_{};
    Method method_ = Method::copy;
    Region region_;

    // Tables for the columns and rows they were last made for; all source indices count from the region's edge.
    Side columns_{}, rows_{};
    bool columns_known_ = false, rows_known_ = false;
    size_t left_ = 0, right_ = 0, top_ = 0, bottom_ = 0;
    Taps taps_;
    FineTaps fine_taps_;
    Coverage<int32_t> down_;
    std::vector<int16_t> down_fine_;
    std::vector<int32_t> columns_at_, rows_at_;  // of nearest
    size_t most_rows_ = 0;

    // Scratch.
    Coverage<int32_t> across_;
    Coverage<double> covered_;
    std::vector<double> kernel_;
    std::vector<uint8_t> padded_;
    Ring<uint8_t> bytes_;
    Ring<int16_t> fines_;
};

}  // namespace batchplant
