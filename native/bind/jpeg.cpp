#include "../images/jpeg.hpp"

#include "bind.hpp"

namespace batchplant {
namespace {

JpegMode parse_mode(const std::optional<std::string>& mode) {
    if (!mode) return JpegMode::stored;
    if (*mode == "L") return JpegMode::gray;
    if (*mode == "RGB") return JpegMode::rgb;
    throw std::invalid_argument("mode must be None, 'L' or 'RGB', not '" + *mode + "'");
}

JpegDct parse_dct(const std::string& dct) {
    if (dct != "accurate" && dct != "fast") throw std::invalid_argument("dct must be 'accurate' or 'fast'");
    return dct == "fast" ? JpegDct::fast : JpegDct::accurate;
}

struct Decoded {
    ImageShape shape;
    std::unique_ptr<uint8_t[]> pixels;
};

Decoded decode_unlocked(const Bytes& data, const JpegOptions& options) {
    nb::gil_scoped_release unlocked;
    JpegDecoder decoder;
    decoder.open(data.data(), data.size());
    Decoded decoded{decoder.shape(options), nullptr};
    decoded.pixels = std::make_unique_for_overwrite<uint8_t[]>(decoded.shape.bytes());
    decoder.decode(decoded.pixels.get(), options);
    return decoded;
}

PixelsOut decode(const Bytes& data, const std::optional<std::string>& mode, const std::string& dct) {
    Decoded decoded = decode_unlocked(data, {.mode = parse_mode(mode), .dct = parse_dct(dct)});
    uint8_t* pixels = decoded.pixels.get();
    const auto& shape = decoded.shape;
    return PixelsOut(pixels, {shape.height, shape.width, shape.channels}, owner_of(decoded.pixels));
}

std::vector<uint8_t> encode_unlocked(const Pixels& pixels, int quality) {
    nb::gil_scoped_release unlocked;
    return jpeg_encode(pixels.data(), {pixels.shape(0), pixels.shape(1), pixels.shape(2)}, quality);
}

nb::bytes encode(const Pixels& pixels, int quality) {
    const auto encoded = encode_unlocked(pixels, quality);
    return nb::bytes(encoded.data(), encoded.size());
}

}  // namespace

void bind_jpeg(nb::module_& module) {
    module.def("jpeg_decode", decode, array_arg("data"), nb::arg("mode") = nb::none(), nb::arg("dct") = "accurate",
               BUFFER_SIG("jpeg_decode", "mode: str | None = None, dct: str = 'accurate') -> ndarray[dtype=uint8]"),
               R"(Decode a JPEG to height x width x channels.

mode: None (as stored), "L" or "RGB"; CMYK only as stored. dct: as Engine.decode takes it.
ValueError says what is wrong with the data.)");
    module.def("jpeg_encode", encode, array_arg("pixels"), nb::arg("quality") = 90,
               "Encode height x width x (1 or 3) pixels as a baseline JPEG, colour at 4:2:0.");
}

}  // namespace batchplant
