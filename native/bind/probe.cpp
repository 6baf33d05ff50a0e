#include "../images/probe.hpp"

#include "bind.hpp"

namespace batchplant {
namespace {

constexpr size_t columns = 5;
constexpr int64_t missing = -1;

using Headers = nb::ndarray<nb::numpy, int32_t, nb::shape<-1, columns>>;

std::unique_ptr<int32_t[]> probe_runs(const Bytes& data, const Int64s& starts, const Int64s& sizes) {
    nb::gil_scoped_release unlocked;
    const size_t n = starts.size();
    auto table = std::make_unique<int32_t[]>(n * columns);
    for (size_t i = 0; i < n; ++i) {
        const int64_t start = starts.data()[i];
        const int64_t size = sizes.data()[i];
        if (size == missing || size == 0) continue;
        if (!run_fits(start, size, data.size())) throw_bad_run(static_cast<int64_t>(i));
        const ImageHeader header = probe_image(data.data() + start, static_cast<size_t>(size));
        int32_t* row = table.get() + i * columns;
        row[0] = static_cast<int32_t>(header.encoding);
        row[1] = header.width;
        row[2] = header.height;
        row[3] = static_cast<int32_t>(header.mode);
        row[4] = header.bits;
    }
    return table;
}

Headers probe(const Bytes& data, const Int64s& starts, const Int64s& sizes) {
    check_same_length(starts, "starts", sizes, "sizes");
    auto table = probe_runs(data, starts, sizes);
    int32_t* values = table.get();
    return Headers(values, {starts.size(), columns}, owner_of(table));
}

std::unique_ptr<uint8_t[]> decodable_runs(const Bytes& data, const Int64s& starts, const Int64s& sizes,
                                          const Sizes& shapes) {
    nb::gil_scoped_release unlocked;
    const size_t n = starts.size();
    auto found = std::make_unique<uint8_t[]>(n);
    for (size_t i = 0; i < n; ++i) {
        const int64_t start = starts.data()[i];
        const int64_t size = sizes.data()[i];
        if (size == missing) continue;
        if (!run_fits(start, size, data.size())) throw_bad_run(static_cast<int64_t>(i));
        const int64_t* shape = shapes.data() + 2 * i;
        found[i] = device_jpeg(data.data() + start, static_cast<size_t>(size), shape[0], shape[1]).sampling();
    }
    return found;
}

Array<uint8_t> device_decodable(const Bytes& data, const Int64s& starts, const Int64s& sizes, const Sizes& shapes) {
    check_same_length(starts, "starts", sizes, "sizes");
    check_sizes(starts, shapes);
    auto found = decodable_runs(data, starts, sizes, shapes);
    return array_of(found, starts.size());
}

}  // namespace

void bind_probe(nb::module_& module) {
    module.def("probe", probe, array_arg("data"), array_arg("starts"), array_arg("sizes"),
               R"(Read the image header of every run: columns encoding, width, height, mode, bits (n x 5).

encoding: 0 unknown, 1 jpeg, 2 png, 3 webp, 4 gif, 5 bmp, 6 tiff
mode:     0 unknown, 1 L, 2 LA, 3 RGB, 4 RGBA, 5 P, 6 CMYK, 7 one bit
A run of size 0 or -1 (missing) gives zeros; a damaged header gives its encoding and zeros.)");
    module.def("device_decodable", device_decodable, array_arg("data"), array_arg("starts"), array_arg("sizes"),
               array_arg("shapes"), R"(Which runs are JPEGs that a GPU's decoder takes, of these shapes (height, width).

Only headers are read: baseline, YCbCr of 8 bits in one scan, complete to the last byte. 0x11, 0x21 or
0x22 says how many pixels share a colour, in a row and in a column; 0: it is none of those, or missing
(size -1).)");
}

}  // namespace batchplant
