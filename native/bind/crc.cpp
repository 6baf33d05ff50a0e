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

uint32_t crc32_of(const Bytes& data, uint32_t seed) {
    nb::gil_scoped_release unlocked;
    return crc32(data.data(), data.size(), seed);
}

uint32_t crc32_portable_of(const Bytes& data, uint32_t seed) {
    nb::gil_scoped_release unlocked;
    return crc32_portable(data.data(), data.size(), seed);
}

using Sum = uint32_t (*)(const uint8_t*, size_t, uint32_t);

std::unique_ptr<uint32_t[]> sum_runs(Sum sum, const Bytes& data, const Int64s& starts, const Int64s& sizes) {
    nb::gil_scoped_release unlocked;
    const size_t n = starts.size();
    const int64_t bad = first_bad_run(starts.data(), sizes.data(), n, data.size());
    if (bad >= 0) throw_bad_run(bad);
    auto sums = std::make_unique_for_overwrite<uint32_t[]>(n);
    for (size_t i = 0; i < n; ++i) {
        sums[i] = sum(data.data() + starts.data()[i], static_cast<size_t>(sizes.data()[i]), 0);
    }
    return sums;
}

template <Sum sum>
Uint32s sums_of_runs(const Bytes& data, const Int64s& starts, const Int64s& sizes) {
    check_same_length(starts, "starts", sizes, "sizes");
    auto sums = sum_runs(sum, data, starts, sizes);
    uint32_t* values = sums.get();
    return Uint32s(values, {starts.size()}, owner_of(sums));
}

std::unique_ptr<uint32_t[]> copy_and_sum(const Bytes& src, const Int64s& src_starts, const Int64s& sizes,
                                         const MutableBytes& dst, const Int64s& dst_starts) {
    nb::gil_scoped_release unlocked;
    const size_t n = sizes.size();
    const int64_t *from = src_starts.data(), *size = sizes.data(), *to = dst_starts.data();
    int64_t bad = first_bad_run(from, size, n, src.size());
    if (bad < 0) bad = first_bad_run(to, size, n, dst.size());
    if (bad >= 0) throw_bad_run(bad);
    auto sums = std::make_unique_for_overwrite<uint32_t[]>(n);
    for (size_t i = 0; i < n; ++i) {
        if (i + 1 < n) prefetch_run(src.data() + from[i + 1], size[i + 1]);
        sums[i] = crc32_copy(src.data() + from[i], static_cast<size_t>(size[i]), dst.data() + to[i]);
    }
    return sums;
}

Uint32s copy_runs_crc32(const Bytes& src, const Int64s& src_starts, const Int64s& sizes, const MutableBytes& dst,
                        const Int64s& dst_starts) {
    check_same_length(src_starts, "src_starts", sizes, "sizes");
    check_same_length(dst_starts, "dst_starts", sizes, "sizes");
    auto sums = copy_and_sum(src, src_starts, sizes, dst, dst_starts);
    uint32_t* values = sums.get();
    return Uint32s(values, {sizes.size()}, owner_of(sums));
}

}  // namespace

void bind_crc(nb::module_& module) {
    module.def("crc32c", crc32c_of, nb::arg("data").noconvert(), nb::arg("seed") = 0,
               "CRC-32C of the bytes; seed continues an earlier result.");
    module.def("_crc32c_portable", crc32c_portable_of, nb::arg("data").noconvert(), nb::arg("seed") = 0,
               "CRC-32C without the processor's help, for tests.");
    module.def("crc32c_runs", sums_of_runs<crc32c>, nb::arg("data").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), "CRC-32C of every run of the data.");
    module.def("crc32", crc32_of, nb::arg("data").noconvert(), nb::arg("seed") = 0,
               "zlib's CRC-32 of the bytes; seed continues an earlier result.");
    module.def("_crc32_portable", crc32_portable_of, nb::arg("data").noconvert(), nb::arg("seed") = 0,
               "zlib's CRC-32 without the processor's help, for tests.");
    module.def("crc32_runs", sums_of_runs<crc32>, nb::arg("data").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), "zlib's CRC-32 of every run of the data.");
    module.def("copy_runs_crc32", copy_runs_crc32, nb::arg("src").noconvert(), nb::arg("src_starts").noconvert(),
               nb::arg("sizes").noconvert(), nb::arg("dst").noconvert(), nb::arg("dst_starts").noconvert(),
               "Copy runs of src to their places in dst, and give zlib's CRC-32 of each.");
}

}  // namespace batchplant
