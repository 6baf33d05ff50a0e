#include "../pictures/nvjpeg.hpp"

#include <nanobind/stl/string.h>

#include "bind.hpp"

namespace batchplant {
namespace {

Encoded encoded_of(const Bytes& data, const Int64s& starts, const Int64s& sizes, const Sizes& shapes) {
    check_same_length(starts, "starts", sizes, "sizes");
    check_sizes(starts, shapes);
    return {data.data(), data.size(), starts.data(), sizes.data(), shapes.data(), starts.size()};
}

void decode(NvJpeg& nvjpeg, const Bytes& data, const Int64s& starts, const Int64s& sizes, const Sizes& shapes,
            uint64_t address, uint64_t room, const Int64s& places, uint64_t stream) {
    const Encoded encoded = encoded_of(data, starts, sizes, shapes);
    check_same_length(starts, "starts", places, "places");
    nb::gil_scoped_release unlocked;
    nvjpeg.decode(encoded, {address, room, places.data()}, stream);
}

}  // namespace

void bind_nvjpeg(nb::module_& module) {
    nb::class_<NvJpeg>(module, "NvJpeg", "NVIDIA's JPEG decoder on the device that is current.")
        .def(nb::init<const std::string&, bool>(), nb::arg("library"), nb::kw_only(), nb::arg("_hardware") = true,
             nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("hardware", &NvJpeg::hardware, "Whether circuits decode, or else the device's processors.")
        .def("decode", decode, nb::arg("data").noconvert(), nb::arg("starts").noconvert(),
             nb::arg("sizes").noconvert(), nb::arg("shapes").noconvert(), nb::arg("address"), nb::arg("room"),
             nb::arg("places").noconvert(), nb::arg("stream"),
             "Begin to decode these JPEGs to places (height, width, 3) behind an address of the device.");
}

}  // namespace batchplant
