#include "../records/tfrecord.hpp"

#include "gathered.hpp"

namespace batchplant {
namespace {

TfRecordScan scan_unlocked(const Bytes& data, uint64_t start, uint64_t until, bool check_data) {
    nb::gil_scoped_release unlocked;
    return scan_tfrecord(data.data(), data.size(), start, until, check_data);
}

std::tuple<Array<int64_t>, Array<int64_t>, uint64_t, int32_t> scan(const Bytes& data, uint64_t start, uint64_t until,
                                                                   bool check_data) {
    const TfRecordScan found = scan_unlocked(data, start, until, check_data);
    return {copy_of(found.starts), copy_of(found.sizes), found.next, static_cast<int32_t>(found.fault)};
}

std::tuple<int64_t, int32_t> check(const Bytes& data, const Int64s& starts, const Int64s& sizes, bool check_data) {
    check_same_length(starts, "starts", sizes, "sizes");
    nb::gil_scoped_release unlocked;
    const TfRecordCheck found =
        check_tfrecords(data.data(), data.size(), starts.data(), sizes.data(), starts.size(), check_data);
    return {found.row, static_cast<int32_t>(found.fault)};
}

std::optional<std::tuple<Array<uint8_t>, Array<int64_t>, int64_t, int32_t>> gather(const Bytes& data,
                                                                                   const Int64s& starts,
                                                                                   const Int64s& sizes,
                                                                                   bool if_resident) {
    check_same_length(starts, "starts", sizes, "sizes");
    TfRecordCheck check;
    Gathered found = gather_unlocked(data, starts, sizes, if_resident, [&](const int64_t* offsets, uint8_t* out) {
        check = copy_tfrecords(data.data(), data.size(), starts.data(), sizes.data(), starts.size(), out, offsets);
    });
    if (found.data == nullptr) return std::nullopt;
    Array<uint8_t> bytes = found.data_array(starts.size());
    return std::tuple{bytes, found.offsets_array(starts.size()), check.row, static_cast<int32_t>(check.fault)};
}

std::unique_ptr<uint8_t[]> frame_unlocked(const Bytes& data, const Int64s& starts, const Int64s& sizes, size_t& total) {
    nb::gil_scoped_release unlocked;
    check_runs(starts, sizes, data.size());
    total = framed_size(sizes.data(), sizes.size());
    auto out = std::make_unique_for_overwrite<uint8_t[]>(total);
    frame_tfrecords(data.data(), starts.data(), sizes.data(), sizes.size(), out.get());
    return out;
}

Array<uint8_t> frame(const Bytes& data, const Int64s& starts, const Int64s& sizes) {
    size_t total = 0;
    auto out = frame_unlocked(data, starts, sizes, total);
    return array_of(out, total);
}

}  // namespace

void bind_tfrecord(nb::module_& module) {
    module.def("tfrecord_scan", scan, array_arg("data"), nb::arg("start"), nb::arg("until"),
               nb::arg("check_data") = false, R"(Find the records of a TFRecord file that begin in [start, until).

Starts and sizes of their data, where the next one begins, and what is wrong there: 0 nothing; 1 the
file ends inside a length; 2 the checksum of the length is wrong; 3 the file ends inside the data; 4
the checksum of the data is wrong (with check_data).)");
    module.def("tfrecord_check", check, array_arg("data"), array_arg("starts"), array_arg("sizes"),
               nb::arg("check_data") = true,
               "The first damaged record of these, or -1, and what is wrong: as tfrecord_scan; 5 another length.");
    module.def("tfrecord_gather", gather, array_arg("data"), array_arg("starts"), array_arg("sizes"),
               nb::arg("if_resident") = false,
               "As gather_runs, with records checked on the way: data, offsets, and what tfrecord_check gives.");
    module.def("tfrecord_frame", frame, array_arg("data"), array_arg("starts"), array_arg("sizes"),
               "The runs as TFRecord records, one after another. IndexError names the first that is out of bounds.");
}

}  // namespace batchplant
