#include "../records/datum.hpp"
#include "bind.hpp"

namespace batchplant {
namespace {

using Floats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
std::tuple<Table<int64_t>, std::optional<std::tuple<size_t, std::string>>> datums(const Bytes& data,
                                                                                  const Int64s& starts,
                                                                                  const Int64s& sizes) {
    const size_t n = starts.size();
    auto rows = std::make_unique<int64_t[]>(n * datum_numbers);
    std::optional<std::tuple<size_t, std::string>> failure;
    {
        nb::gil_scoped_release unlocked;
        check_runs(starts, sizes, data.size());
        for (size_t i = 0; i < n; ++i) {
            Datum datum;
            const int64_t start = starts.data()[i];
            const char* wrong = parse_datum(data.data() + start, static_cast<size_t>(sizes.data()[i]), datum);
            if (wrong != nullptr) {
                failure = std::make_tuple(i, std::string(wrong));
                break;
            }
            const int64_t row[datum_numbers] = {datum.channels,   datum.height,
                                                datum.width,      datum.label,
                                                datum.encoded,    start + datum.data_start,
                                                datum.data_size,  start + datum.float_start,
                                                datum.float_count};
            std::copy(row, row + datum_numbers, rows.get() + i * datum_numbers);
        }
    }
    return {table_of(rows, n, datum_numbers), failure};
}

void datum_floats(const Bytes& message, const Floats& out) {
    Datum datum;
    if (parse_datum(message.data(), message.size(), datum) != nullptr ||
        static_cast<size_t>(datum.float_count) != out.size()) {
        throw std::invalid_argument("the message has another number of values");
    }
    copy_datum_floats(message.data(), message.size(), out.data());
}

}  // namespace

void bind_datum(nb::module_& module) {
    module.def("datum_scan", datums, array_arg("data"), array_arg("starts"), array_arg("sizes"),
               R"(Find the parts of Caffe's Datum messages, and (row, reason) of the first that is none.

Columns: channels, height, width, label, encoded, start and size of data (-1: none), start and count
of float_data (n x 9).)");
    module.def("datum_floats", datum_floats, array_arg("message"), array_arg("out"),
               "Copy the values of float_data of one Datum message.");
}

}  // namespace batchplant
