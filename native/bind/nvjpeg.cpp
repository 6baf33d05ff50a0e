#include "../pictures/nvjpeg.hpp"

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
    nb::class_<NvJpeg>(module, "NvJpeg", R"(NVIDIA's JPEG decoder on the current device, which must be current in all calls.

RuntimeError where there is no such library, or no device. One thread at a time.)")
        .def(nb::init<const std::string&, bool>(), nb::arg("library"), nb::kw_only(), nb::arg("_hardware") = true,
             nb::call_guard<nb::gil_scoped_release>(),
             "Uses the device's JPEG hardware where it has some, unless _hardware=False (for tests).")
        .def_prop_ro("hardware", &NvJpeg::hardware, "Whether JPEG hardware decodes, or else CUDA kernels.")
        .def("decode", decode, array_arg("data"), array_arg("starts"), array_arg("sizes"), array_arg("shapes"),
             nb::arg("address"), nb::arg("room"), array_arg("places"), nb::arg("stream"),
             R"(Begin, on a CUDA stream, to decode to memory of the device: room bytes from address on.

The planes of picture i (Y, Cb, Cr, as large as they are stored, without gaps) go to places[i].
ValueError where nvJPEG refuses one, RuntimeError where the device fails. The encoded bytes have to
stay until the stream is done.)");
}

}  // namespace batchplant
