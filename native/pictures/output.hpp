#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../kernels/kernels.hpp"

namespace batchplant {

enum class Layout { nhwc, nchw };
enum class PixelType { uint8, float16, float32 };

// A batch of pictures of one size, in memory that the caller owns.
struct Output {
    uint8_t* data = nullptr;
    size_t pictures = 0;
    size_t height = 0;
    size_t width = 0;
    size_t channels = 0;
    PixelType type = PixelType::uint8;
    Layout layout = Layout::nhwc;
    // For the float types, a value for each value of a row in the order that it is written in.
    std::vector<float> scale;
    std::vector<float> offset;

    size_t value_size() const { return type == PixelType::uint8 ? 1 : type == PixelType::float16 ? 2 : 4; }
    size_t row_values() const { return width * channels; }
    size_t picture_size() const { return height * row_values() * value_size(); }
    uint8_t* picture(size_t index) const { return data + index * picture_size(); }

    // Sets scale and offset from those of each channel; null stands for 1 and 0.
    void normalise(const float* channel_scale, const float* channel_offset);
};

// Takes the rows of one picture, HWC bytes, in any order, and puts them where and how the output wants them.
class RowWriter {
public:
    // Scratch for a row, kept by the thread from picture to picture.
    using Scratch = std::vector<uint8_t>;

    RowWriter(const Output& output, size_t index, const Kernels& kernels, Scratch& scratch);

    // Where to put the bytes of row y; finish(y) must follow before the next row().
    uint8_t* row(size_t y) const { return direct() ? picture_ + y * output_.row_values() : scratch_; }
    void finish(size_t y) const;

    // Whether rows lie one after the other in the output as they are.
    bool direct() const { return direct_; }

private:
    const Output& output_;
    const Kernels& kernels_;
    uint8_t* picture_;
    uint8_t* scratch_;
    bool direct_;
};

}  // namespace batchplant
