#include "../gather.hpp"

#include <nanobind/stl/vector.h>

#include <vector>

#include "gathered.hpp"

namespace batchplant {
namespace {

Gathered cells_unlocked(const std::vector<CellPiece>& pieces, const Int64s& piece, const Int64s& row) {
    nb::gil_scoped_release unlocked;
    const size_t n = piece.size();
    Gathered found{std::make_unique_for_overwrite<int64_t[]>(n + 1), nullptr};
    const int64_t bad =
        place_cells(pieces.data(), pieces.size(), piece.data(), row.data(), n, found.offsets.get());
    if (bad >= 0) throw_bad_run(bad);
    found.data = std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(found.offsets[n]));
    copy_cells(pieces.data(), piece.data(), row.data(), n, found.offsets.get(), found.data.get());
    return found;
}

std::tuple<Data, Numbers> gather_cells(const std::vector<Bytes>& data, const std::vector<Int64s>& offsets,
                                       const Int64s& piece, const Int64s& row) {
    check_same_length(piece, "piece", row, "row");
    if (data.size() != offsets.size()) throw std::invalid_argument("as many offsets as data are needed");
    std::vector<CellPiece> pieces;
    for (size_t i = 0; i < data.size(); ++i) {
        if (offsets[i].size() == 0) throw std::invalid_argument("offsets have an end");
        pieces.push_back({data[i].data(), data[i].size(), offsets[i].data(), offsets[i].size() - 1});
    }
    Gathered found = cells_unlocked(pieces, piece, row);
    Data bytes = found.data_array(piece.size());
    return {bytes, found.offsets_array(piece.size())};
}

std::optional<std::tuple<Data, Numbers>> gather_runs(const Bytes& data, const Int64s& starts, const Int64s& sizes,
                                                     bool look) {
    check_same_length(starts, "starts", sizes, "sizes");
    Gathered found = gather_unlocked(data, starts, sizes, look, [&](const int64_t* offsets, uint8_t* out) {
        copy_in_turn(data.data(), starts.data(), offsets, starts.size(), out);
    });
    if (found.data == nullptr) return std::nullopt;
    Data bytes = found.data_array(starts.size());
    return std::tuple{bytes, found.offsets_array(starts.size())};
}

void gather_rows(const std::vector<Bytes>& data, size_t width, const Int64s& piece, const Int64s& row,
                 const MutableBytes& out) {
    check_same_length(piece, "piece", row, "row");
    // No product that could overflow: out exists, and is that large.
    const bool fits = width == 0 ? out.size() == 0 : out.size() % width == 0 && out.size() / width == piece.size();
    if (!fits) throw std::invalid_argument("out has another size than the rows");
    std::vector<RowPiece> pieces;
    for (const Bytes& one : data) pieces.push_back({one.data(), one.size()});
    nb::gil_scoped_release unlocked;
    const int64_t bad =
        copy_rows(pieces.data(), pieces.size(), width, piece.data(), row.data(), piece.size(), out.data());
    if (bad >= 0) throw_bad_run(bad);
}

}  // namespace

void bind_gather(nb::module_& module) {
    module.def("gather_cells", gather_cells, nb::arg("data"), nb::arg("offsets"), nb::arg("piece").noconvert(),
               nb::arg("row").noconvert(), "Cells picked by piece and row, one after another: data and offsets.");
    module.def("gather_runs", gather_runs, nb::arg("data").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), nb::arg("look") = false,
               "Runs of the data, one after another: data and offsets. With look: None where they are not in memory.");
    module.def("gather_rows", gather_rows, nb::arg("data"), nb::arg("width"), nb::arg("piece").noconvert(),
               nb::arg("row").noconvert(), nb::arg("out").noconvert(),
               "Rows of one width picked by piece and row, into out.");
}

}  // namespace batchplant
