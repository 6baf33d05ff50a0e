#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "decoder.hpp"
#include "jpeg.hpp"
#include "resample.hpp"

namespace batchplant {

// Decodes PNGs of up to 8 bits for each value, one after the other. libdeflate or our own inflate.hpp unpacks; the
// chunks, the filters, interlacing and palettes are done here. All functions throw std::invalid_argument with a message
// for people when the data is bad, and NotNative for what is left to others: 16 bits, animations, chunks in an odd
// order. Every chunk's checksum is checked. Not for two threads at once.
class PngDecoder {
public:
    PngDecoder();
    ~PngDecoder();

    // Reads all chunks. The bytes are borrowed until the next open(). Refuses an image of more than `most_pixels`,
    // or one that claims more than its bytes could hold, before any memory is taken. channels are those of mode().
    ImageShape open(const uint8_t* data, size_t size, uint64_t most_pixels);

    // Mode of the pixels once a palette is looked up: l, la, rgb or rgba.
    PixelMode mode() const;

    // True if decode() can give this mode: one that loses nothing, or `palette`: indices of a palette image,
    // levels of a gray one.
    bool can(PixelMode mode) const;

    // The pixels down to the region's last row, valid until the next call; all columns. `overrun` bytes after them
    // may be read. The rows below are not unpacked, but the checksums of their chunks are checked. Once for each
    // open().
    PixelView decode(PixelMode mode, const Region& need);

    // The memory that the pixels of the last decode() lie in, from its first byte on.
    std::unique_ptr<uint8_t[]> take();

private:
    struct State;
    std::unique_ptr<State> state_;
};

// For example "libdeflate 1.14"; "none" in a build without it, where everything is NotNative.
std::string png_library();

}  // namespace batchplant
