#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "jpeg.hpp"
#include "warp.hpp"

namespace batchplant {

// Augmentations of the levels of an image. Results are Pillow's (ImageOps, ImageEnhance), bit for bit.
// The numbers are those of batchplant.ops.changes.Change.
enum class Change : uint8_t {
    none,
    brightness,  // amount: 0 black, 1 as it is
    contrast,    // amount: 0 the mean gray, 1 as it is
    saturation,  // amount: 0 gray, 1 as it is; of three channels
    sharpness,   // amount: 0 smooth, 1 as it is
    posterize,   // amount: bits that are kept of each level
    solarize,    // amount: levels from here on are inverted
    invert,
    autocontrast,  // the darkest level of each channel becomes 0, the lightest 255
    equalize,      // as many pixels of each level in each channel, as far as possible
    jpeg,          // amount: quality of a JPEG that it is encoded to and decoded from; of one or three channels
    affine,        // amounts: a, b, c, d, e, f: (x, y) comes from (ax + by + c, dx + ey + f)
};
constexpr uint8_t changes = 12;
constexpr size_t amounts_of_change = 6;

// Rows of width * channels bytes, one after the other.
struct Image {
    uint8_t* pixels;
    size_t height, width, channels;

    size_t bytes() const { return height * width * channels; }
};

// Changes images in place, one after the other, and keeps its scratch memory. Not for two threads at once.
class Changer {
public:
    // Pixels from outside of the image become `fill`, one value for each channel. smooth: affine blends the four
    // pixels around a place; else it takes the nearest.
    Changer(const uint8_t* fill, bool smooth);

    // Throws std::invalid_argument where an image cannot be changed so.
    void apply(const Image& image, Change change, const double* amounts);

    // The image as it is and after each chain of so many changes, added up by weight, that of the image first;
    // cut, not rounded.
    void mix(const Image& image, size_t chains, size_t steps, const uint8_t* codes, const double* amounts,
             const float* weights);

private:
    void sharpen(const Image& image, float ratio);
    void encode(const Image& image, int quality);
    void move(const Image& image, const double* matrix);

    const uint8_t* fill_;
    bool smooth_;
    std::vector<uint8_t> rows_, changed_;
    std::vector<float> sums_;
    JpegDecoder decoder_;
    WarpScratch warping_;
};

// Adds to every value a draw of the normal distribution times sigma, rounds, and cuts to 0..255. `quantiles` are 4096
// values of that distribution; the n-th value gets that one which the n-th 12 bits of the key's stream name (five in
// each word of 64 bits).
void add_noise(uint8_t* values, size_t count, uint64_t key, float sigma, const float* quantiles);

}  // namespace batchplant
