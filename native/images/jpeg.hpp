#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../kernels/jpeg_kernels.hpp"

namespace batchplant {

struct BaselineHeader;
struct CodedPart;
struct ScanPart;
class BaselineDecoder;

enum class JpegMode { stored, gray, rgb };

// accurate: libjpeg's slow integer DCT, the one everybody decodes with; fast: its quick one.
enum class JpegDct { accurate, fast };

struct ImageShape {
    size_t height = 0;
    size_t width = 0;
    size_t channels = 0;

    size_t bytes() const { return height * width * channels; }
};

struct JpegOptions {
    JpegMode mode = JpegMode::stored;
    JpegDct dct = JpegDct::accurate;
    // Decode at a half, a quarter or an eighth of the size, each side rounded up.
    size_t shrink = 1;
    // Refuse an image that libjpeg warns about, rather than keep the pixels it made up.
    bool strict = true;
};

// Decodes JPEGs, one after the other, into memory that it keeps or that the caller owns. All functions throw
// std::invalid_argument with a message for people when the data is bad; the decoder can then go on with the
// next image. Not for two threads at once.
// No image sees anything of the one before it: libjpeg would let one without tables of its own borrow those
// of its predecessor, and the pixels would then depend on which thread saw what.
class JpegDecoder {
public:
    // With kernels, decode_part() decodes the common kind of image itself (baseline.hpp), which takes less time
    // and gives the same pixels, and leaves to libjpeg all others and whatever is damaged. Without, libjpeg does all.
    explicit JpegDecoder(const JpegKernels* kernels = nullptr);
    ~JpegDecoder();

    // Reads the header. The bytes are borrowed until the next open(). Refuses an image that claims more
    // pixels than its bytes could hold, before any memory is taken for them. channels are those stored.
    ImageShape open(const uint8_t* data, size_t size);

    // Shape that decode() will give. Refuses images that cannot be converted to that mode.
    ImageShape shape(const JpegOptions& options) const;

    // Either of these may be called once for each open().

    // Writes rows of width * channels bytes, one after the other: shape(options).bytes() in all.
    void decode(uint8_t* pixels, const JpegOptions& options);

    // The part of the image that was decoded, somewhat larger than what was asked for; its pixels equal
    // those of a decode of the whole, if perhaps not at its very edges. Valid until the next call.
    struct Part {
        const uint8_t* pixels;
        size_t left, top, width, height;
        size_t stride;
        const uint8_t* end;  // of the memory that may be read
    };

    // Decodes columns left to right - 1 of rows top to bottom - 1 (of the shrunken image) and as little else
    // as possible. Damage below the last row is not noticed. `spare` bytes after the pixels may be read.
    Part decode_part(size_t left, size_t top, size_t right, size_t bottom, const JpegOptions& options, size_t spare);

    // Coefficients of that part, for a device that makes pixels of them. False if it is not of the common kind
    // (baseline.hpp, three components) or anything at all is out of the ordinary.
    bool code_part(size_t left, size_t top, size_t right, size_t bottom, CodedPart& coded);

    // The same for a device that reads the scan, too.
    bool scan_part(size_t left, size_t top, size_t right, size_t bottom, ScanPart& scan);

    // Number of libjpeg's warnings since open().
    size_t warnings() const;

    // Number of parts that were decoded without libjpeg, in all.
    size_t baseline_parts() const;

private:
    template <typename Made>
    bool baseline_part(size_t left, size_t top, size_t right, size_t bottom, Made& made,
                       bool (BaselineDecoder::*make)(const BaselineHeader&, size_t, size_t, size_t, size_t, Made&));

    struct State;
    std::unique_ptr<State> state_;
};

// Baseline JPEG, 4:2:0 for three channels (RGB), gray for one.
// Throws std::invalid_argument when the shape or the quality cannot be encoded.
std::vector<uint8_t> jpeg_encode(const uint8_t* pixels, ImageShape shape, int quality);

// For example "libjpeg-turbo 2.1.5".
std::string jpeg_library();

}  // namespace batchplant
