#pragma once

#include <cstddef>
#include <cstdint>

#include "decoder.hpp"
#include "resample.hpp"

namespace batchplant {

// EXIF orientation of an image: 1 as it is stored, 2 mirrored, 3 upside down,
// 4 both, 5 to 8 the same with rows and columns exchanged first. Other numbers mean 1.
class Turn {
public:
    Turn(unsigned orientation, size_t stored_width, size_t stored_height);

    bool turns() const { return swap_ || mirror_x_ || mirror_y_; }
    // Size of the turned image.
    size_t width() const { return swap_ ? height_ : width_; }
    size_t height() const { return swap_ ? width_ : height_; }

    // Stored region of a region of the turned image.
    Region stored(const Region& turned) const;

    // Stored position of a pixel of the turned image.
    size_t stored_x(size_t x, size_t y) const;
    size_t stored_y(size_t x, size_t y) const;

private:
    size_t width_, height_;
    bool swap_, mirror_x_, mirror_y_;  // the last two in stored coordinates
};

// The region `need` of the turned image out of pixels that hold at least what it needs; kept in `scratch` unless
// nothing has to be turned.
PixelView turn_pixels(const PixelView& stored, const Turn& turn, const Region& need, size_t channels, Scratch& scratch);

}  // namespace batchplant
