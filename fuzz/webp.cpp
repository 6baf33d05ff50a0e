#include "../native/images/webp.hpp"

#include <algorithm>
#include <stdexcept>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace batchplant;
    static WebpDecoder decoder;
    try {
        const ImageShape shape = decoder.open(data, size, 1 << 20);
        const PixelMode mode = decoder.can(PixelMode::rgb) && size % 2 == 0 ? PixelMode::rgb : PixelMode::rgba;
        const size_t left = size % shape.width, top = size % shape.height;
        const Region need{left, top, std::min(shape.width, left + 1 + size % 9), shape.height};
        const PixelView view = decoder.decode(mode, need);
        // Every byte that it promises, for the sanitizer to see.
        volatile uint8_t seen = 0;
        for (size_t y = 0; y < view.region.height(); ++y) {
            for (size_t i = 0; i < view.region.width() * channels_of(mode); ++i) {
                seen = seen + view.pixels[y * view.stride + i];
            }
        }
    } catch (const std::invalid_argument&) {
        // The answer to bad data.
    } catch (const NotNative&) {
        // And to what it leaves to others.
    }
    return 0;
}
