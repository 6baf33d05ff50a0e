#pragma once

#include <cstddef>
#include <cstdint>

namespace batchplant {

// Shrinks HWC pixels so that each result pixel is the mean of the source area it covers (OpenCV's
// INTER_AREA). Needs 1 <= dst_width <= width, 1 <= dst_height <= height and channels >= 1.
// Takes memory for a few rows, whatever the height.
void resize_area(const uint8_t* src, size_t height, size_t width, size_t channels, uint8_t* dst, size_t dst_height,
                 size_t dst_width);

}  // namespace batchplant
