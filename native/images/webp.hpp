#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "decoder.hpp"
#include "jpeg.hpp"
#include "resample.hpp"

namespace batchplant {

// Decodes still WebP images, lossy and lossless, by libwebp. Throws as PngDecoder does; animations are NotNative.
// Not for two threads at once.
class WebpDecoder {
public:
    // Reads the header. The bytes are borrowed until the next open().
    ImageShape open(const uint8_t* data, size_t size, uint64_t most_pixels);

    // rgb, or rgba for an image with alpha.
    PixelMode mode() const { return alpha_ ? PixelMode::rgba : PixelMode::rgb; }
    bool can(PixelMode mode) const { return converts(this->mode(), mode); }

    // The region and a little around it, valid until the next call: the same pixels that a decode of the whole gives,
    // if perhaps not at its very edges. `overrun` bytes after them may be read. Damage below is not always noticed.
    PixelView decode(PixelMode mode, const Region& need);

    // The memory that the pixels of the last decode() lie in, from its first byte on.
    std::unique_ptr<uint8_t[]> take() { return pixels_.take(); }

private:
    const uint8_t* data_ = nullptr;
    size_t size_ = 0, width_ = 0, height_ = 0;
    bool alpha_ = false;
    Scratch pixels_;
};

// For example "libwebp 1.2.4"; "none" in a build without it, where everything is NotNative.
std::string webp_library();

}  // namespace batchplant
