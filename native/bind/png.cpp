#include "../images/png.hpp"

#include "../images/webp.hpp"
#include "bind.hpp"

namespace batchplant {

PixelMode pixel_mode(const std::string& name) {
    if (name == "L") return PixelMode::l;
    if (name == "LA") return PixelMode::la;
    if (name == "RGB") return PixelMode::rgb;
    if (name == "RGBA") return PixelMode::rgba;
    if (name == "P") return PixelMode::palette;
    return PixelMode::unknown;
}

namespace {

struct Decoded {
    ImageShape shape;
    std::unique_ptr<uint8_t[]> pixels;
};

template <typename Decoder>
Decoded decode_unlocked(const Bytes& data, const std::optional<PixelMode>& asked, uint64_t most_pixels) {
    nb::gil_scoped_release unlocked;
    Decoder decoder;
    ImageShape shape = decoder.open(data.data(), data.size(), most_pixels);
    const PixelMode mode = asked.value_or(decoder.mode());
    if (!decoder.can(mode)) throw NotNative();
    shape.channels = channels_of(mode);
    const PixelView view = decoder.decode(mode, {0, 0, shape.width, shape.height});
    // Not copied: large images would take as much again.
    auto pixels = decoder.take();
    if (pixels.get() != view.pixels) throw std::logic_error("the pixels are not where they should be");
    return {shape, std::move(pixels)};
}

template <typename Decoder>
std::optional<PixelsOut> decode(const Bytes& data, const std::optional<std::string>& mode, uint64_t most_pixels) {
    try {
        const std::optional<PixelMode> asked = mode ? std::optional(pixel_mode(*mode)) : std::nullopt;
        Decoded decoded = decode_unlocked<Decoder>(data, asked, most_pixels);
        uint8_t* pixels = decoded.pixels.get();
        const auto& shape = decoded.shape;
        return PixelsOut(pixels, {shape.height, shape.width, shape.channels}, owner_of(decoded.pixels));
    } catch (const NotNative&) {
        return std::nullopt;
    }
}

}  // namespace

#define PIXELS_SIG(name) \
    BUFFER_SIG(name, "mode: str | None = None, most_pixels: int = 268435456) -> ndarray[dtype=uint8] | None")

void bind_png(nb::module_& module) {
    constexpr uint64_t most_pixels = uint64_t{1} << 28;
    module.def("png_decode", decode<PngDecoder>, array_arg("data"), nb::arg("mode") = nb::none(),
               nb::arg("most_pixels") = most_pixels, PIXELS_SIG("png_decode"),
               R"(Decode a PNG of up to 8 bits to height x width x channels.

mode: None (palettes looked up: RGB, or RGBA where the palette has alpha), "L", "LA", "RGB", "RGBA"
where that loses nothing, or "P": indices of a palette image, levels of a gray one. Gives None
where this code does not decode it: 16 bits, a mode that would change pixels, odd chunks. ValueError
says what is damaged, or that the image has more than most_pixels.)");
    module.def("webp_decode", decode<WebpDecoder>, array_arg("data"), nb::arg("mode") = nb::none(),
               nb::arg("most_pixels") = most_pixels, PIXELS_SIG("webp_decode"),
               "Decode a WebP as png_decode does; None also for animations, and in a build without libwebp.");
}

}  // namespace batchplant
