#include "../crc.hpp"

#include "../bytes.hpp"
#include "bind.hpp"

namespace batchplant {
namespace {

using Uint32s = nb::ndarray<nb::numpy, uint32_t, nb::ndim<1>>;

uint32_t crc32c_of(const Bytes& data, uint32_t seed) {
    nb::gil_scoped_release unlocked;
    return crc32c(data.data(), data.size(), seed);
}

uint32_t crc32c_portable_of(const Bytes& data, uint32_t seed) {
    nb::gil_scoped_release unlocked;
    return crc32c_portable(data.data(), data.size(), seed);
}

std::unique_ptr<uint32_t[]> sum_runs(const Bytes& data, const Int64s& starts, const Int64s& sizes) {
    nb::gil_scoped_release unlocked;
    const size_t n = starts.size();
    const int64_t bad = first_bad_run(starts.data(), sizes.data(), n, data.size());
    if (bad >= 0) throw_bad_run(bad);
    auto sums = std::make_unique_for_overwrite<uint32_t[]>(n);
    for (size_t i = 0; i < n; ++i) {
        sums[i] = crc32c(data.data() + starts.data()[i], static_cast<size_t>(sizes.data()[i]));
    }
    return sums;
}

Uint32s crc32c_runs(const Bytes& data, const Int64s& starts, const Int64s& sizes) {
    check_same_length(starts, "starts", sizes, "sizes");
    auto sums = sum_runs(data, starts, sizes);
    uint32_t* values = sums.get();
    return Uint32s(values, {starts.size()}, owner_of(sums));
}

}  // namespace

void bind_crc(nb::module_& module) {
    module.def("crc32c", crc32c_of, nb::arg("data").noconvert(), nb::arg("seed") = 0,
               "CRC-32C of the bytes; seed continues an earlier result.");
    module.def("_crc32c_portable", crc32c_portable_of, nb::arg("data").noconvert(), nb::arg("seed") = 0,
               "CRC-32C without the processor's help, for tests.");
    module.def("crc32c_runs", crc32c_runs, nb::arg("data").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), "CRC-32C of every run of the data.");
}

}  // namespace batchplant
