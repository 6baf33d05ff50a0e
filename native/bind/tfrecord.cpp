#include "../records/tfrecord.hpp"

#include <cstring>

#include "gathered.hpp"

namespace batchplant {
namespace {

Numbers numbers_of(const std::vector<int64_t>& values) {
    auto memory = std::make_unique_for_overwrite<int64_t[]>(values.size());
    if (!values.empty()) std::memcpy(memory.get(), values.data(), values.size() * sizeof(int64_t));
    int64_t* plain = memory.get();
    return Numbers(plain, {values.size()}, owner_of(memory));
}

TfRecordScan scan_unlocked(const Bytes& data, uint64_t start, uint64_t until, bool check_data) {
    nb::gil_scoped_release unlocked;
    return scan_tfrecord(data.data(), data.size(), start, until, check_data);
}

std::tuple<Numbers, Numbers, uint64_t, int32_t> scan(const Bytes& data, uint64_t start, uint64_t until,
                                                     bool check_data) {
    const TfRecordScan found = scan_unlocked(data, start, until, check_data);
    return {numbers_of(found.starts), numbers_of(found.sizes), found.next, static_cast<int32_t>(found.fault)};
}

std::tuple<int64_t, int32_t> check(const Bytes& data, const Int64s& starts, const Int64s& sizes, bool check_data) {
    check_same_length(starts, "starts", sizes, "sizes");
    nb::gil_scoped_release unlocked;
    const TfRecordCheck found =
        check_tfrecords(data.data(), data.size(), starts.data(), sizes.data(), starts.size(), check_data);
    return {found.row, static_cast<int32_t>(found.fault)};
}

std::optional<std::tuple<Data, Numbers, int64_t, int32_t>> gather(const Bytes& data, const Int64s& starts,
                                                                  const Int64s& sizes, bool look) {
    check_same_length(starts, "starts", sizes, "sizes");
    TfRecordCheck check;
    Gathered found = gather_unlocked(data, starts, sizes, look, [&](const int64_t* offsets, uint8_t* out) {
        check = copy_tfrecords(data.data(), data.size(), starts.data(), sizes.data(), starts.size(), out, offsets);
    });
    if (found.data == nullptr) return std::nullopt;
    Data bytes = found.data_array(starts.size());
    return std::tuple{bytes, found.offsets_array(starts.size()), check.row, static_cast<int32_t>(check.fault)};
}

std::unique_ptr<uint8_t[]> frame_unlocked(const Bytes& data, const Int64s& starts, const Int64s& sizes, size_t& total) {
    nb::gil_scoped_release unlocked;
    const int64_t bad = first_bad_run(starts.data(), sizes.data(), starts.size(), data.size());
    if (bad >= 0) throw_bad_run(bad);
    total = framed_size(sizes.data(), sizes.size());
    auto out = std::make_unique_for_overwrite<uint8_t[]>(total);
    frame_tfrecords(data.data(), starts.data(), sizes.data(), sizes.size(), out.get());
    return out;
}

Data frame(const Bytes& data, const Int64s& starts, const Int64s& sizes) {
    check_same_length(starts, "starts", sizes, "sizes");
    size_t total = 0;
    auto out = frame_unlocked(data, starts, sizes, total);
    uint8_t* plain = out.get();
    return Data(plain, {total}, owner_of(out));
}

}  // namespace

void bind_tfrecord(nb::module_& module) {
    module.def("tfrecord_scan", scan, nb::arg("data").noconvert(), nb::arg("start"), nb::arg("until"),
               nb::arg("check_data") = false, "Starts and sizes of the records, where to go on, and what is wrong there.");
    module.def("tfrecord_check", check, nb::arg("data").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), nb::arg("check_data") = true,
               "The first of these records that is damaged, and what is wrong with it.");
    module.def("tfrecord_gather", gather, nb::arg("data").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), nb::arg("look") = false,
               "As gather_runs, checked on the way; and the first record that is damaged, and what is wrong.");
    module.def("tfrecord_frame", frame, nb::arg("data").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), "The runs as records with lengths and checksums.");
}

}  // namespace batchplant
