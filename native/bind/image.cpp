#include "../images/image.hpp"

#include "bind.hpp"

namespace batchplant {
namespace {

struct Size {
    size_t width;
    size_t height;
};

Size check_size(const Pixels& pixels, int64_t width, int64_t height) {
    const auto have_height = static_cast<int64_t>(pixels.shape(0));
    const auto have_width = static_cast<int64_t>(pixels.shape(1));
    if (pixels.shape(2) == 0) throw std::invalid_argument("pixels without channels cannot be resized");
    if (width < 1 || width > have_width || height < 1 || height > have_height) {
        throw std::invalid_argument("cannot shrink " + std::to_string(have_width) + " x " +
                                    std::to_string(have_height) + " pixels to " + std::to_string(width) + " x " +
                                    std::to_string(height));
    }
    return {static_cast<size_t>(width), static_cast<size_t>(height)};
}

std::unique_ptr<uint8_t[]> resize_unlocked(const Pixels& pixels, Size size) {
    nb::gil_scoped_release unlocked;
    const size_t channels = pixels.shape(2);
    auto resized = std::make_unique_for_overwrite<uint8_t[]>(size.height * size.width * channels);
    resize_area(pixels.data(), pixels.shape(0), pixels.shape(1), channels, resized.get(), size.height, size.width);
    return resized;
}

PixelsOut resize(const Pixels& pixels, int64_t width, int64_t height) {
    const Size size = check_size(pixels, width, height);
    auto resized = resize_unlocked(pixels, size);
    uint8_t* values = resized.get();
    return PixelsOut(values, {size.height, size.width, pixels.shape(2)}, owner_of(resized));
}

}  // namespace

void bind_image(nb::module_& module) {
    module.def("resize_area", resize, array_arg("pixels"), nb::arg("width"), nb::arg("height"),
               R"(Shrink pixels; each result is the mean of the area that it covers (OpenCV's INTER_AREA).

ValueError unless 1 <= width and height <= those of the pixels.)");
}

}  // namespace batchplant
