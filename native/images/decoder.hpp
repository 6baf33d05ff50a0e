#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "probe.hpp"

namespace batchplant {

// Shared by the decoders of PNG and WebP.

// Thrown for an image that Pillow has to decode; as far as this code can tell, nothing is wrong with it.
struct NotNative {};

inline size_t channels_of(PixelMode mode) {
    switch (mode) {
        case PixelMode::l:
        case PixelMode::palette: return 1;
        case PixelMode::la: return 2;
        case PixelMode::rgb: return 3;
        case PixelMode::rgba:
        case PixelMode::cmyk: return 4;
        default: return 0;
    }
}

// True if pixels of one mode convert to another without loss; codecs/media/image.py has the same rule.
inline bool converts(PixelMode from, PixelMode to) {
    if (from == to) return true;
    switch (from) {
        case PixelMode::l: return to == PixelMode::la || to == PixelMode::rgb || to == PixelMode::rgba;
        case PixelMode::la:
        case PixelMode::rgb: return to == PixelMode::rgba;
        default: return false;
    }
}

// Memory that grows and never shrinks, so that from the second image on little is allocated.
class Scratch {
public:
    // At least so many bytes, of whatever content. What was there before is lost where there were fewer.
    uint8_t* room(size_t size) {
        if (size_ < size) {
            bytes_.reset();
            size_ = 0;
            bytes_ = std::make_unique_for_overwrite<uint8_t[]>(size);
            size_ = size;
        }
        return bytes_.get();
    }
    uint8_t* data() { return bytes_.get(); }

    // The memory itself; the next room() is of new memory.
    std::unique_ptr<uint8_t[]> take() {
        size_ = 0;
        return std::move(bytes_);
    }

private:
    std::unique_ptr<uint8_t[]> bytes_;
    size_t size_ = 0;
};

// Throws for an image that is larger than the caller wants to see.
inline void check_pixels(size_t width, size_t height, uint64_t most) {
    // Sides have 31 bits at most, so the product fits.
    const uint64_t pixels = uint64_t{width} * height;
    if (pixels <= most) return;
    throw std::invalid_argument("the image has " + std::to_string(width) + " x " + std::to_string(height) +
                                " pixels, and the limit is " + std::to_string(most) +
                                "; raise it with BATCHPLANT_MAX_PIXELS");
}

}  // namespace batchplant
