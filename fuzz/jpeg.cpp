#include "../native/images/jpeg.hpp"

#include <memory>
#include <stdexcept>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using batchplant::JpegMode;
    constexpr JpegMode modes[] = {JpegMode::stored, JpegMode::gray, JpegMode::rgb};
    try {
        batchplant::JpegDecoder decoder;
        decoder.open(data, size);
        const batchplant::JpegOptions options{.mode = modes[size % 3]};
        const auto pixels = std::make_unique<uint8_t[]>(decoder.shape(options).bytes());
        decoder.decode(pixels.get(), options);
    } catch (const std::invalid_argument&) {
        // The answer to bad data.
    }
    return 0;
}
