#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../kernels/kernels.hpp"

namespace batchplant {

enum class Layout { nhwc, nchw };
enum class PixelType { uint8, float16, float32 };

// The part of an output's image that holds pixels; the rest of it is filled.
struct Place {
    size_t top = 0, left = 0, height = 0, width = 0;
};

// A batch of images of one size, in memory that the caller owns.
struct Output {
    uint8_t* data = nullptr;
    size_t images = 0;
    size_t height = 0;
    size_t width = 0;
    size_t channels = 0;
    PixelType type = PixelType::uint8;
    Layout layout = Layout::nhwc;
    // For the float types, a value for each value of a row in the order that it is written in.
    std::vector<float> scale;
    std::vector<float> offset;
    // A row of the fill colour around images, in the layout of the output.
    std::vector<uint8_t> fill;

    size_t value_size() const { return type == PixelType::uint8 ? 1 : type == PixelType::float16 ? 2 : 4; }
    size_t row_values() const { return width * channels; }
    size_t image_size() const { return height * row_values() * value_size(); }
    uint8_t* image(size_t index) const { return data + index * image_size(); }

    // Sets scale and offset from those of each channel; null stands for 1 and 0.
    void normalise(const float* channel_scale, const float* channel_offset);
    // Sets what is filled in, a byte for each channel as if it were a pixel's; null stands for zeros.
    void set_fill(const uint8_t* channel_fill, const Kernels& kernels);
    // Fills all of an image but the place.
    void fill_around(size_t index, const Place& place) const;
};

// Takes the rows of one image, HWC bytes, in any order, and puts them where and how the output wants them.
class RowWriter {
public:
    // Scratch for a row, kept by the thread from image to image.
    using Scratch = std::vector<uint8_t>;

    // down: the rows come upside down.
    RowWriter(const Output& output, size_t index, const Place& place, bool down, const Kernels& kernels,
              Scratch& scratch);

    // Destination of the bytes of row y; finish(y) must follow before the next row().
    uint8_t* row(size_t y) const {
        return direct_ ? image_ + line(y) * output_.row_values() + place_.left * output_.channels : scratch_;
    }
    void finish(size_t y) const;

    // True if rows are contiguous and unconverted in the output.
    bool direct() const { return direct_ && !down_ && place_.width == output_.width; }

private:
    // Row of the output that row y is written to.
    size_t line(size_t y) const { return place_.top + (down_ ? place_.height - 1 - y : y); }

    const Output& output_;
    const Kernels& kernels_;
    const Place place_;
    const bool down_;
    uint8_t* image_;
    uint8_t* scratch_;
    bool direct_;
};

}  // namespace batchplant
