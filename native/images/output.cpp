#include "output.hpp"

#include <cstring>

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

void Output::set_fill(const uint8_t* channel_fill, const Kernels& kernels) {
    std::vector<uint8_t> bytes(row_values());
    for (size_t i = 0; i < bytes.size(); ++i) {
        const size_t channel = layout == Layout::nhwc ? i % channels : i / width;
        bytes[i] = channel_fill ? channel_fill[channel] : 0;
    }
    fill.resize(bytes.size() * value_size());
    switch (type) {
        case PixelType::uint8: fill = bytes; break;
        case PixelType::float16:
            kernels.to_half(bytes.data(), scale.data(), offset.data(), reinterpret_cast<uint16_t*>(fill.data()),
                            bytes.size());
            break;
        case PixelType::float32:
            kernels.to_float(bytes.data(), scale.data(), offset.data(), reinterpret_cast<float*>(fill.data()),
                             bytes.size());
            break;
    }
}

void Output::fill_around(size_t index, const Place& place) const {
    if (place.height == height && place.width == width) return;
    const bool planes = layout == Layout::nchw;
    const size_t pixel = value_size() * (planes ? 1 : channels), line = width * pixel;
    const size_t right = place.left + place.width, bottom = place.top + place.height;
    uint8_t* to = image(index);
    for (size_t plane = 0; plane < (planes ? channels : 1); ++plane) {
        const uint8_t* row = fill.data() + plane * line;
        for (size_t y = 0; y < height; ++y, to += line) {
            if (y < place.top || y >= bottom) {
                std::memcpy(to, row, line);
            } else {
                std::memcpy(to, row, place.left * pixel);
                std::memcpy(to + right * pixel, row + right * pixel, (width - right) * pixel);
            }
        }
    }
}

RowWriter::RowWriter(const Output& output, size_t index, const Place& place, bool down, const Kernels& kernels,
                     Scratch& scratch)
    : output_(output),
      kernels_(kernels),
      place_(place),
      down_(down),
      image_(output.image(index)),
      direct_(output.type == PixelType::uint8 && (output.layout == Layout::nhwc || output.channels == 1)) {
    // A row as it comes, and the same with its channels apart.
    if (scratch.size() < 2 * output.row_values()) scratch.resize(2 * output.row_values());
    scratch_ = scratch.data();
}

void RowWriter::finish(size_t y) const {
    if (direct_) return;
    const size_t width = place_.width, channels = output_.channels, plane = output_.height * output_.width;
    const uint8_t* row = scratch_;
    // Values from the start of the image, or of a plane.
    size_t start = line(y) * output_.width + place_.left;
    if (output_.layout == Layout::nchw && output_.type == PixelType::uint8) {
        return kernels_.split(row, image_ + start, plane, width, channels);
    }
    // The loop below writes `runs` pieces of the row, each `run` values long, `step` values apart.
    size_t runs = channels, run = width, step = plane;
    if (output_.layout == Layout::nchw) {
        uint8_t* planes = scratch_ + output_.row_values();
        kernels_.split(row, planes, width, width, channels);
        row = planes;
    } else {
        runs = 1, run = width * channels, start *= channels;
    }
    for (size_t i = 0; i < runs; ++i) {
        const size_t at = i * run;
        const float* scale = output_.scale.data() + i * output_.width;
        const float* offset = output_.offset.data() + i * output_.width;
        if (output_.type == PixelType::float16) {
            kernels_.to_half(row + at, scale, offset, reinterpret_cast<uint16_t*>(image_) + start + i * step, run);
        } else {
            kernels_.to_float(row + at, scale, offset, reinterpret_cast<float*>(image_) + start + i * step, run);
        }
    }
}

}  // namespace batchplant
