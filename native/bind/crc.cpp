#include "../io/crc.hpp"

#include "gathered.hpp"

namespace batchplant {
namespace {

using Sums = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
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

// The sum that run i should have is sums[which[i]].
std::optional<std::tuple<Data, Numbers, int64_t>> gather_runs_crc32(const Bytes& data, const Int64s& starts,
                                                                    const Int64s& sizes, const Sums& sums,
                                                                    const Int64s& which, bool look) {
    check_same_length(starts, "starts", sizes, "sizes");
    check_same_length(starts, "starts", which, "which");
    const size_t n = starts.size();
    int64_t bad = -1;
    Gathered found = gather_unlocked(data, starts, sizes, look, [&](const int64_t* offsets, uint8_t* out) {
        const int64_t *from = starts.data(), *size = sizes.data(), *number = which.data();
        for (size_t i = 0; i < n; ++i) {
            if (number[i] < 0 || static_cast<uint64_t>(number[i]) >= sums.size()) throw_bad_run(static_cast<int64_t>(i));
            __builtin_prefetch(sums.data() + number[i]);
        }
        for (size_t i = 0; i < n; ++i) {
            if (i + 2 < n) prefetch_run(data.data() + from[i + 2], size[i + 2]);
            const uint32_t sum = crc32_copy(data.data() + from[i], static_cast<size_t>(size[i]), out + offsets[i]);
            if (sum != sums.data()[number[i]] && bad < 0) bad = static_cast<int64_t>(i);
        }
    });
    if (found.data == nullptr) return std::nullopt;
    Data bytes = found.data_array(n);
    return std::tuple{bytes, found.offsets_array(n), bad};
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
    module.def("gather_runs_crc32", gather_runs_crc32, nb::arg("data").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), nb::arg("sums").noconvert(), nb::arg("which").noconvert(),
               nb::arg("look") = false,
               "As gather_runs; and the first run whose CRC-32 is not that among the sums, or -1.");
}

}  // namespace batchplant
