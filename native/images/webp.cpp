#include "webp.hpp"

#include <algorithm>
#include <new>
#include <stdexcept>

#ifdef BATCHPLANT_LIBWEBP
#include <webp/decode.h>
#endif

namespace batchplant {

#ifdef BATCHPLANT_LIBWEBP

namespace {

[[noreturn]] void fail(VP8StatusCode status) {
    switch (status) {
        case VP8_STATUS_OUT_OF_MEMORY: throw std::bad_alloc();
        case VP8_STATUS_UNSUPPORTED_FEATURE: throw NotNative();
        case VP8_STATUS_SUSPENDED:
        case VP8_STATUS_NOT_ENOUGH_DATA: throw std::invalid_argument("WebP: it is cut short");
        default: throw std::invalid_argument("WebP: it is damaged");
    }
}

// The colour of a pixel also comes from its neighbours' chroma, and libwebp takes the edge of what it decodes for the
// edge of the image. It begins at even columns and rows.
constexpr size_t margin = 2;

size_t before(size_t edge) { return edge < margin ? 0 : (edge - margin) / 2 * 2; }

}  // namespace

ImageShape WebpDecoder::open(const uint8_t* data, size_t size, uint64_t most_pixels) {
    WebPBitstreamFeatures features;
    const VP8StatusCode status = WebPGetFeatures(data, size, &features);
    if (status != VP8_STATUS_OK) fail(status);
    if (features.has_animation) throw NotNative();
    data_ = data;
    size_ = size;
    width_ = static_cast<size_t>(features.width);
    height_ = static_cast<size_t>(features.height);
    alpha_ = features.has_alpha != 0;
    check_pixels(width_, height_, most_pixels);
    return {height_, width_, channels_of(mode())};
}

PixelView WebpDecoder::decode(PixelMode mode, const Region& need) {
    const Region part{before(need.left), before(need.top), std::min(width_, need.right + margin),
                      std::min(height_, need.bottom + margin)};
    const size_t stride = part.width() * channels_of(mode), bytes = stride * part.height();
    uint8_t* pixels = pixels_.room(bytes + overrun);
    WebPDecoderConfig config;
    if (!WebPInitDecoderConfig(&config)) throw NotNative();
    config.options.use_cropping = 1;
    config.options.crop_left = static_cast<int>(part.left);
    config.options.crop_top = static_cast<int>(part.top);
    config.options.crop_width = static_cast<int>(part.width());
    config.options.crop_height = static_cast<int>(part.height());
    config.output.colorspace = mode == PixelMode::rgba ? MODE_RGBA : MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = pixels;
    config.output.u.RGBA.stride = static_cast<int>(stride);
    config.output.u.RGBA.size = bytes;
    const VP8StatusCode status = WebPDecode(data_, size_, &config);
    WebPFreeDecBuffer(&config.output);
    if (status != VP8_STATUS_OK) fail(status);
    return {pixels, stride, part, pixels + bytes + overrun};
}

std::string webp_library() {
    const int version = WebPGetDecoderVersion();
    return "libwebp " + std::to_string(version >> 16) + "." + std::to_string(version >> 8 & 255) + "." +
           std::to_string(version & 255);
}

#else

ImageShape WebpDecoder::open(const uint8_t*, size_t, uint64_t) { throw NotNative(); }
PixelView WebpDecoder::decode(PixelMode, const Region&) { throw NotNative(); }
std::string webp_library() { return "none"; }

#endif

}  // namespace batchplant
