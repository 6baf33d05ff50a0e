#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace batchplant {

enum class JpegMode { stored, gray, rgb };

struct ImageShape {
    size_t height = 0;
    size_t width = 0;
    size_t channels = 0;

    size_t bytes() const { return height * width * channels; }
};

// Decodes one JPEG in two steps, so that the caller owns the pixels: start() names their shape, decode()
// fills them. Both throw std::invalid_argument with a message for people when the data is bad.
// Nothing is kept from one image to the next: libjpeg would let an image without tables of its own borrow
// those of the image before it, and the pixels would then depend on which thread saw what.
class JpegDecoder {
public:
    // The bytes are borrowed and must outlive the decoder.
    JpegDecoder(const uint8_t* data, size_t size);
    ~JpegDecoder();

    // Refuses an image whose header claims more pixels than its bytes could hold, before any memory
    // is taken for them.
    ImageShape start(JpegMode mode);

    // Writes rows of width * channels bytes, one after the other: shape.bytes() in all.
    void decode(uint8_t* pixels);

private:
    struct State;
    std::unique_ptr<State> state_;
};

// Baseline JPEG, 4:2:0 for three channels (RGB), gray for one.
// Throws std::invalid_argument when the shape or the quality cannot be encoded.
std::vector<uint8_t> jpeg_encode(const uint8_t* pixels, ImageShape shape, int quality);

// For example "libjpeg-turbo 2.1.5".
std::string jpeg_library();

}  // namespace batchplant
