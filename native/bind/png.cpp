#include "../pictures/png.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>

#include "../pictures/webp.hpp"
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
    // Not copied: large pictures would take as much again.
    auto pixels = decoder.take();
    if (pixels.get() != view.pixels) throw std::logic_error("the pixels are not where they should be");
    return {shape, std::move(pixels)};
}

template <typename Decoder>
nb::object decode(const Bytes& data, const std::optional<std::string>& mode, uint64_t most_pixels) {
    try {
        const std::optional<PixelMode> asked = mode ? std::optional(pixel_mode(*mode)) : std::nullopt;
        Decoded decoded = decode_unlocked<Decoder>(data, asked, most_pixels);
        uint8_t* pixels = decoded.pixels.get();
        const auto& shape = decoded.shape;
        return nb::cast(PixelsOut(pixels, {shape.height, shape.width, shape.channels}, owner_of(decoded.pixels)));
    } catch (const NotNative&) {
        return nb::none();
    }
}

}  // namespace

void bind_png(nb::module_& module) {
    constexpr uint64_t most_pixels = uint64_t{1} << 28;
    module.def("png_decode", decode<PngDecoder>, nb::arg("data").noconvert(), nb::arg("mode") = nb::none(),
               nb::arg("most_pixels") = most_pixels,
               "Decode a PNG of 8 bits to height x width x channels; None where this code has no way to.");
    module.def("webp_decode", decode<WebpDecoder>, nb::arg("data").noconvert(), nb::arg("mode") = nb::none(),
               nb::arg("most_pixels") = most_pixels,
               "Decode a still WebP to height x width x channels; None where this code has no way to.");
}

}  // namespace batchplant
