#include "../images/rle.hpp"

#include <numeric>

#include "bind.hpp"

namespace batchplant {
namespace {

template <typename Pixel>
using Canvas = nb::ndarray<Pixel, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Mask = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::optional<Array<int64_t>> rle_counts(const Bytes& text, int64_t pixels) {
    rle::Counts counts;
    bool good;
    {
        nb::gil_scoped_release unlocked;
        good = rle::parse(text.data(), text.size(), pixels, counts);
    }
    if (!good) return std::nullopt;
    return array_of(std::move(counts));
}

nb::bytes rle_text(const Int64s& counts) {
    const std::string text = rle::text_of({counts.data(), counts.size()});
    return nb::bytes(text.data(), text.size());
}

template <typename Pixel>
void rle_paint(const Int64s& counts, const Canvas<Pixel>& canvas, Pixel value) {
    const std::span<const int64_t> given{counts.data(), counts.size()};
    int64_t left = static_cast<int64_t>(canvas.size());
    for (const int64_t count : given) {
        if (count < 0 || count > left) throw std::invalid_argument("the counts are not those of this mask");
        left -= count;
    }
    nb::gil_scoped_release unlocked;
    rle::paint<Pixel>(given, canvas.shape(0), canvas.shape(1), value, canvas.data());
}

Array<int64_t> rle_of_mask(const Mask& mask) {
    rle::Counts counts;
    {
        nb::gil_scoped_release unlocked;
        rle::of_mask(mask.data(), mask.shape(0), mask.shape(1), counts);
    }
    return array_of(std::move(counts));
}

std::optional<Array<int64_t>> rle_of_polygon(const Borrowed<double>& corners, size_t height, size_t width) {
    if (height > INT32_MAX || width > INT32_MAX) throw std::invalid_argument("the mask is too large");
    rle::Counts counts;
    bool good;
    {
        nb::gil_scoped_release unlocked;
        good = rle::of_polygon({corners.data(), corners.size()}, height, width, counts);
    }
    if (!good) return std::nullopt;
    return array_of(std::move(counts));
}

}  // namespace

void bind_rle(nb::module_& module) {
    module.def("rle_counts", rle_counts, array_arg("text"), nb::arg("pixels"),
               "The counts of COCO's run-length text; None where it is none of so many pixels.");
    module.def("rle_text", rle_text, array_arg("counts"), "Counts as COCO's run-length text.");
    module.def("rle_paint", rle_paint<uint8_t>, array_arg("counts"), array_arg("canvas"), nb::arg("value"),
               "Set the pixels that are in to a value. Counts go down the columns, out and in by turns.");
    module.def("rle_paint", rle_paint<uint16_t>, array_arg("counts"), array_arg("canvas"), nb::arg("value"),
               "The same on a canvas of 16 bits.");
    module.def("rle_of_mask", rle_of_mask, array_arg("mask"), "The counts of a mask: what is not 0 is in.");
    module.def("rle_of_polygon", rle_of_polygon, array_arg("corners"), nb::arg("height"), nb::arg("width"),
               "The counts of a polygon (x, y, x, y, ...); None where it reaches too far.");
}

}  // namespace batchplant
