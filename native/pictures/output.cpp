#include "output.hpp"

namespace batchplant {

void Output::normalise(const float* channel_scale, const float* channel_offset) {
    scale.resize(row_values());
    offset.resize(row_values());
    for (size_t i = 0; i < row_values(); ++i) {
        const size_t channel = layout == Layout::nhwc ? i % channels : i / width;
        scale[i] = channel_scale ? channel_scale[channel] : 1.0f;
        offset[i] = channel_offset ? channel_offset[channel] : 0.0f;
    }
}

RowWriter::RowWriter(const Output& output, size_t index, const Kernels& kernels, Scratch& scratch)
    : output_(output),
      kernels_(kernels),
      picture_(output.picture(index)),
      direct_(output.type == PixelType::uint8 && (output.layout == Layout::nhwc || output.channels == 1)) {
    // A row as it comes, and the same with its channels apart.
    if (scratch.size() < 2 * output.row_values()) scratch.resize(2 * output.row_values());
    scratch_ = scratch.data();
}

void RowWriter::finish(size_t y) const {
    if (direct_) return;
    const size_t width = output_.width, channels = output_.channels, plane = output_.height * width;
    const uint8_t* row = scratch_;
    if (output_.layout == Layout::nchw && output_.type == PixelType::uint8) {
        return kernels_.split(row, picture_ + y * width, plane, width, channels);
    }
    // What follows writes `runs` pieces of the row, each `run` values long, `step` values apart.
    size_t runs = 1, run = output_.row_values(), step = 0, start = y * run;
    if (output_.layout == Layout::nchw) {
        uint8_t* planes = scratch_ + output_.row_values();
        kernels_.split(row, planes, width, width, channels);
        row = planes;
        runs = channels, run = width, step = plane, start = y * width;
    }
    for (size_t i = 0; i < runs; ++i) {
        const size_t at = i * run;
        const float* scale = output_.scale.data() + at;
        const float* offset = output_.offset.data() + at;
        if (output_.type == PixelType::float16) {
            kernels_.to_half(row + at, scale, offset, reinterpret_cast<uint16_t*>(picture_) + start + i * step, run);
        } else {
            kernels_.to_float(row + at, scale, offset, reinterpret_cast<float*>(picture_) + start + i * step, run);
        }
    }
}

}  // namespace batchplant
