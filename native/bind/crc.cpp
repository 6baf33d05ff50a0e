#include "../io/crc.hpp"

#include "gathered.hpp"

namespace batchplant {
namespace {

using Sum = uint32_t (*)(const uint8_t*, size_t, uint32_t);

template <Sum sum>
uint32_t sum_of(const Bytes& data, uint32_t seed) {
    nb::gil_scoped_release unlocked;
    return sum(data.data(), data.size(), seed);
}

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
Array<uint32_t> sums_of_runs(const Bytes& data, const Int64s& starts, const Int64s& sizes) {
    check_same_length(starts, "starts", sizes, "sizes");
    auto sums = sum_runs(sum, data, starts, sizes);
    return array_of(sums, starts.size());
}

// The sum that run i should have is sums[which[i]].
std::optional<std::tuple<Array<uint8_t>, Array<int64_t>, int64_t>> gather_runs_crc32(
    const Bytes& data, const Int64s& starts, const Int64s& sizes, const Borrowed<uint32_t>& sums, const Int64s& which,
    bool if_resident) {
    check_same_length(starts, "starts", sizes, "sizes");
    check_same_length(starts, "starts", which, "which");
    const size_t n = starts.size();
    int64_t bad = -1;
    Gathered gathered = gather_unlocked(data, starts, sizes, if_resident, [&](const int64_t* offsets, uint8_t* out) {
        const int64_t *from = starts.data(), *size = sizes.data(), *number = which.data();
        for (size_t i = 0; i < n; ++i) {
            if (number[i] < 0 || static_cast<uint64_t>(number[i]) >= sums.size())
                throw_bad_run(static_cast<int64_t>(i));
            __builtin_prefetch(sums.data() + number[i]);
        }
        for (size_t i = 0; i < n; ++i) {
            if (i + 2 < n) prefetch_run(data.data() + from[i + 2], size[i + 2]);
            const uint32_t sum = crc32_copy(data.data() + from[i], static_cast<size_t>(size[i]), out + offsets[i]);
            if (sum != sums.data()[number[i]] && bad < 0) bad = static_cast<int64_t>(i);
        }
    });
    if (gathered.data == nullptr) return std::nullopt;
    Array<uint8_t> bytes = gathered.data_array(n);
    return std::tuple{bytes, gathered.offsets_array(n), bad};
}

}  // namespace

void bind_crc(nb::module_& module) {
    module.def("crc32c", sum_of<crc32c>, array_arg("data"), nb::arg("seed") = 0,
               BUFFER_SIG("crc32c", "seed: int = 0) -> int"),
               "CRC-32C of the bytes; seed continues an earlier result.");
    module.def("_crc32c_portable", sum_of<crc32c_portable>, array_arg("data"), nb::arg("seed") = 0,
               BUFFER_SIG("_crc32c_portable", "seed: int = 0) -> int"),
               "CRC-32C without the processor's instruction, for tests.");
    module.def("crc32c_runs", sums_of_runs<crc32c>, array_arg("data"), array_arg("starts"), array_arg("sizes"),
               "CRC-32C of every run of the data. IndexError names the first run that is out of bounds.");
    module.def("crc32", sum_of<crc32>, array_arg("data"), nb::arg("seed") = 0,
               BUFFER_SIG("crc32", "seed: int = 0) -> int"),
               "zlib's CRC-32 of the bytes; seed continues an earlier result.");
    module.def("crc32_runs", sums_of_runs<crc32>, array_arg("data"), array_arg("starts"), array_arg("sizes"),
               "zlib's CRC-32 of every run of the data. IndexError names the first run that is out of bounds.");
    module.def("gather_runs_crc32", gather_runs_crc32, array_arg("data"), array_arg("starts"), array_arg("sizes"),
               array_arg("sums"), array_arg("which"), nb::arg("if_resident") = false,
               "As gather_runs; and the first run i whose CRC-32 (zlib's) is not sums[which[i]], or -1.");
}

}  // namespace batchplant
