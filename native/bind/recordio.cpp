#include "../records/recordio.hpp"

#include "bind.hpp"

namespace batchplant {
namespace {

using Failure = std::optional<std::tuple<std::string, size_t, bool>>;

std::tuple<Array<int64_t>, Array<int64_t>, Array<int64_t>, uint32_t, uint32_t, size_t, Failure> scan(const Bytes& data,
                                                                                                     size_t at,
                                                                                                     size_t until) {
    RecordIoScan found;
    if (at > data.size()) throw std::out_of_range("there is nothing to scan there");
    {
        nb::gil_scoped_release unlocked;
        found = scan_recordio(data.data(), data.size(), at, until);
    }
    Failure failure;
    if (found.error != nullptr) failure = std::make_tuple(std::string(found.error), found.error_at, found.cut);
    return {copy_of(found.starts),
            copy_of(found.sizes),
            copy_of(found.split),
            found.least_flag,
            found.most_flag,
            found.end,
            failure};
}

int64_t join(const Bytes& data, const Int64s& starts, const Int64s& sizes, const MutableBytes& out,
             const Int64s& out_starts) {
    check_same_length(starts, "starts", sizes, "sizes");
    check_same_length(starts, "starts", out_starts, "out_starts");
    nb::gil_scoped_release unlocked;
    check_runs(out_starts, sizes, out.size());
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
    check_runs(starts, sizes, data.size());
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

std::tuple<Array<uint8_t>, Array<int64_t>> frame(const Bytes& data, const Int64s& starts, const Int64s& sizes) {
    Framed framed;
    {
        nb::gil_scoped_release unlocked;
        framed = frame_all(data, starts, sizes);
    }
    return {array_of(framed.data, framed.size), array_of(framed.starts, starts.size())};
}

}  // namespace

void bind_recordio(nb::module_& module) {
    module.def("recordio_scan", scan, array_arg("data"), nb::arg("at"), nb::arg("until"),
               R"(Find the records that begin in [at, until).

Starts of their headers, sizes of their data, numbers of those that are split; the least and the
largest first word; the place behind the last; and what stopped the scan: (reason, offset, whether
the data just end there).)");
    module.def("recordio_join", join, array_arg("data"), array_arg("starts"), array_arg("sizes"), array_arg("out"),
               array_arg("out_starts"),
               "Copy records to their places in out, split ones joined; the number of the first bad one, or -1.");
    module.def("recordio_frame", frame, array_arg("data"), array_arg("starts"), array_arg("sizes"),
               "The records as they stand in a file, and where each begins.");
}

}  // namespace batchplant
