#pragma once

#include <cstddef>
#include <cstdint>

namespace batchplant {

// The numbers are part of the Python API (batchplant._native.probe): append, never renumber.
enum class Encoding : int32_t { unknown = 0, jpeg = 1, png = 2, webp = 3, gif = 4, bmp = 5, tiff = 6 };
enum class PixelMode : int32_t { unknown = 0, l = 1, la = 2, rgb = 3, rgba = 4, palette = 5, cmyk = 6, bilevel = 7 };

struct ImageHeader {
    Encoding encoding = Encoding::unknown;
    int32_t width = 0;
    int32_t height = 0;
    PixelMode mode = PixelMode::unknown;
    int32_t bits = 0;
};

// Header of an encoded image, from its first bytes. Reads only inside [data, data + size).
// A header that is damaged or cut short keeps the encoding its magic names; all else stays 0.
ImageHeader probe_image(const uint8_t* data, size_t size);

// Properties of a JPEG that a device needs to decode it.
struct DeviceJpeg {
    size_t header = 0;  // the bytes that come before its pixels; 0: it is none of those
    // Pixels that share a colour, in a row and in a column: 1 or 2.
    int64_t across = 0;
    int64_t down = 0;

    // 0x11, 0x21 or 0x22 as in the header; 0: none of those.
    uint8_t sampling() const { return static_cast<uint8_t>(across << 4 | down); }
};

// Of these bytes if they are, from start to end, a JPEG of this size of the kind that cameras write: baseline, YCbCr of
// 8 bits in one scan, colours at full size, at half of the width (4:2:2), or at half of both sides (4:2:0). Reads no
// more than the header and the last two bytes.
DeviceJpeg device_jpeg(const uint8_t* data, size_t size, int64_t height, int64_t width);

}  // namespace batchplant
