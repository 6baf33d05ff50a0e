#include "../pictures/probe.hpp"

#include "../io/bytes.hpp"
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

using Flags = nb::ndarray<nb::numpy, bool, nb::ndim<1>>;

std::unique_ptr<bool[]> look_at_runs(const Bytes& data, const Int64s& starts, const Int64s& sizes,
                                     const Sizes& shapes) {
    nb::gil_scoped_release unlocked;
    const size_t n = starts.size();
    auto found = std::make_unique<bool[]>(n);
    for (size_t i = 0; i < n; ++i) {
        const int64_t start = starts.data()[i];
        const int64_t size = sizes.data()[i];
        if (size == missing) continue;
        if (!run_fits(start, size, data.size())) throw_bad_run(static_cast<int64_t>(i));
        const int64_t* shape = shapes.data() + 2 * i;
        found[i] = photo_header(data.data() + start, static_cast<size_t>(size), shape[0], shape[1]) > 0;
    }
    return found;
}

Flags photos(const Bytes& data, const Int64s& starts, const Int64s& sizes, const Sizes& shapes) {
    check_same_length(starts, "starts", sizes, "sizes");
    check_sizes(starts, shapes);
    auto found = look_at_runs(data, starts, sizes, shapes);
    bool* values = found.get();
    return Flags(values, {starts.size()}, owner_of(found));
}

}  // namespace

void bind_probe(nb::module_& module) {
    module.def("probe", probe, nb::arg("data").noconvert(), nb::arg("starts").noconvert(), nb::arg("sizes").noconvert(),
               "Image headers of every run, as columns encoding, width, height, mode, bits.");
    module.def("photos", photos, nb::arg("data").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), nb::arg("shapes").noconvert(),
               "Which runs are JPEGs of the common kind, and of these shapes (height, width).");
}

}  // namespace batchplant
