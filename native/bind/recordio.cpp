#include "../records/recordio.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "../io/bytes.hpp"
#include "bind.hpp"

namespace batchplant {
namespace {

using Int64sOut = nb::ndarray<nb::numpy, int64_t, nb::ndim<1>>;
using BytesOut = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;
using Failure = std::optional<std::tuple<std::string, size_t, bool>>;

Int64sOut array_of(const std::vector<int64_t>& values) {
    auto memory = std::make_unique_for_overwrite<int64_t[]>(values.size());
    std::copy(values.begin(), values.end(), memory.get());
    int64_t* data = memory.get();
    return Int64sOut(data, {values.size()}, owner_of(memory));
}

std::tuple<Int64sOut, Int64sOut, Int64sOut, uint32_t, uint32_t, size_t, Failure> scan(const Bytes& data, size_t at,
                                                                                     size_t until) {
    RecordIoScan found;
    if (at > data.size()) throw std::out_of_range("there is nothing to scan there");
    {
        nb::gil_scoped_release unlocked;
        found = scan_recordio(data.data(), data.size(), at, until);
    }
    Failure failure;
    if (found.error != nullptr) failure = std::make_tuple(std::string(found.error), found.error_at, found.cut);
    return {array_of(found.starts), array_of(found.sizes), array_of(found.split), found.least_flag,
            found.most_flag,        found.end,             failure};
}

int64_t join(const Bytes& data, const Int64s& starts, const Int64s& sizes, const MutableBytes& out,
             const Int64s& out_starts) {
    check_same_length(starts, "starts", sizes, "sizes");
    check_same_length(starts, "starts", out_starts, "out_starts");
    nb::gil_scoped_release unlocked;
    const int64_t bad = first_bad_run(out_starts.data(), sizes.data(), sizes.size(), out.size());
    if (bad >= 0) throw_bad_run(bad);
    for (size_t i = 0; i < starts.size(); ++i) {
        if (!join_recordio(data.data(), data.size(), starts.data()[i], out.data() + out_starts.data()[i],
                           static_cast<size_t>(sizes.data()[i]))) {
            return static_cast<int64_t>(i);
        }
    }
    return -1;
}

struct Framed {
    std::unique_ptr<uint8_t[]> data;
    std::unique_ptr<int64_t[]> starts;
    size_t size = 0;
};

Framed frame_all(const Bytes& data, const Int64s& starts, const Int64s& sizes) {
    const size_t n = starts.size();
    const int64_t bad = first_bad_run(starts.data(), sizes.data(), n, data.size());
    if (bad >= 0) throw_bad_run(bad);
    Framed framed;
    framed.starts = std::make_unique_for_overwrite<int64_t[]>(n);
    for (size_t i = 0; i < n; ++i) {
        const auto size = static_cast<size_t>(sizes.data()[i]);
        if (size > recordio_most) throw std::invalid_argument("record " + std::to_string(i) + " is too long");
        framed.starts[i] = static_cast<int64_t>(framed.size);
        framed.size += framed_recordio_size(data.data() + starts.data()[i], size);
    }
    framed.data = std::make_unique_for_overwrite<uint8_t[]>(framed.size);
    uint8_t* out = framed.data.get();
    for (size_t i = 0; i < n; ++i) {
        out = frame_recordio(data.data() + starts.data()[i], static_cast<size_t>(sizes.data()[i]), out);
    }
    return framed;
}

std::tuple<BytesOut, Int64sOut> frame(const Bytes& data, const Int64s& starts, const Int64s& sizes) {
    check_same_length(starts, "starts", sizes, "sizes");
    Framed framed;
    {
        nb::gil_scoped_release unlocked;
        framed = frame_all(data, starts, sizes);
    }
    uint8_t* bytes = framed.data.get();
    int64_t* places = framed.starts.get();
    return {BytesOut(bytes, {framed.size}, owner_of(framed.data)),
            Int64sOut(places, {starts.size()}, owner_of(framed.starts))};
}

}  // namespace

void bind_recordio(nb::module_& module) {
    module.def("recordio_scan", scan, nb::arg("data").noconvert(), nb::arg("at"), nb::arg("until"),
               "The records that begin in [at, until).");
    module.def("recordio_join", join, nb::arg("data").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), nb::arg("out").noconvert(), nb::arg("out_starts").noconvert(),
               "Copy records to their places in out, split ones joined; the number of the first bad one, or -1.");
    module.def("recordio_frame", frame, nb::arg("data").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), "The records as they stand in a file, and where each begins.");
}

}  // namespace batchplant
