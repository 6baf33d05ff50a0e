#include "../native/images/png.hpp"

#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <vector>

#include "../native/io/crc.hpp"

namespace {

using namespace batchplant;

// Almost no damaged chunk has the right checksum, so the code behind that check would hardly be reached.
std::vector<uint8_t> with_checksums(const uint8_t* data, size_t size) {
    std::vector<uint8_t> fixed(data, data + size);
    for (size_t at = 8; at + 12 <= size;) {
        const size_t length = size_t{fixed[at]} << 24 | fixed[at + 1] << 16 | fixed[at + 2] << 8 | fixed[at + 3];
        if (length > size - at - 12) break;
        const uint32_t crc = crc32(fixed.data() + at + 4, length + 4);
        for (size_t i = 0; i < 4; ++i) fixed[at + 8 + length + i] = static_cast<uint8_t>(crc >> (24 - 8 * i));
        at += 12 + length;
    }
    return fixed;
}

uint64_t decode(PngDecoder& decoder, const uint8_t* data, size_t size, size_t choice) {
    constexpr PixelMode modes[] = {PixelMode::l, PixelMode::la, PixelMode::rgb, PixelMode::rgba, PixelMode::palette};
    try {
        const ImageShape shape = decoder.open(data, size, 1 << 20);
        const PixelMode mode = choice % 6 == 5 ? decoder.mode() : modes[choice % 6];
        if (!decoder.can(mode)) return 1;
        const size_t bottom = choice % 4 == 0 ? 1 + choice / 24 % shape.height : shape.height;
        const PixelView view = decoder.decode(mode, {0, 0, shape.width, bottom});
        uint64_t sum = 2;
        for (size_t y = 0; y < bottom; ++y) {
            for (size_t i = 0; i < shape.width * channels_of(mode); ++i) {
                sum = sum * 31 + view.pixels[y * view.stride + i];
            }
        }
        return sum;
    } catch (const std::invalid_argument&) {
        return 0;  // the answer to bad data
    } catch (const NotNative&) {
        return 3;
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static PngDecoder kept;
    const std::vector<uint8_t> fixed = with_checksums(data, size);
    const auto exact = std::make_unique<uint8_t[]>(size);
    std::copy(fixed.begin(), fixed.end(), exact.get());
    const size_t choice = crc32(data, size);
    // What the one before it left behind must not show.
    PngDecoder fresh;
    for (const uint8_t* one : {data, static_cast<const uint8_t*>(exact.get())}) {
        if (decode(kept, one, size, choice) != decode(fresh, one, size, choice)) std::abort();
    }
    return 0;
}
