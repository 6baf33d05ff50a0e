#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace batchplant {

// Images seen through other eyes: rotated, sheared, in perspective. All arrays borrowed; pixels are HWC bytes.
//
// A pixel of the result is looked for in every canvas that the image went through, the first of which is the
// image itself: outside any of them it is filled.
struct WarpJob {
    const uint8_t* source = nullptr;
    uint8_t* out = nullptr;
    size_t images = 0, channels = 0;
    size_t source_height = 0, source_width = 0;  // that the images lie in
    size_t height = 0, width = 0;
    size_t canvases = 0;
    const double* inverse = nullptr;  // for each image and canvas, 3 x 3: from the result to the canvas
    const int32_t* sizes = nullptr;   // for each image and canvas, height and width
    bool bilinear = true;             // else nearest
    const uint8_t* fill = nullptr;    // by channel
};

// Kept by a thread from image to image.
struct WarpScratch {
    std::vector<double> x, y;
    std::vector<uint8_t> inside;
    std::vector<int64_t> across, down;
};

// As Pillow's transform does it: middles of pixels are mapped, and at its edges an image goes on as it ends.
void warp(const WarpJob& job, size_t index, WarpScratch& scratch);

}  // namespace batchplant
