#include "../io/gather.hpp"

#include "gathered.hpp"

namespace batchplant {
namespace {

std::unique_ptr<uint8_t[]> memory_for(size_t rows, size_t width) {
    if (width > 0 && rows > std::numeric_limits<int64_t>::max() / width) throw std::bad_alloc();
    return fresh_memory(rows * width);
}

// The pieces of a column by number, filled in as they become known. A piece is put once and stays. Read without the
// GIL: who reads has seen, under the GIL, that the pieces it wants are there.
class Pieces {
public:
    explicit Pieces(size_t count) : pieces_(count), data_(count), offsets_(count) {}

    void put(size_t number, Bytes data, std::optional<Int64s> offsets) {
        if (number >= pieces_.size()) throw std::out_of_range("there is no piece " + std::to_string(number));
        if (there(number)) throw std::invalid_argument("piece " + std::to_string(number) + " is there already");
        if (offsets && offsets->size() == 0) throw std::invalid_argument("offsets have an end");
        pieces_[number] = {data.data(), data.size(), offsets ? offsets->data() : nullptr,
                           offsets ? offsets->size() - 1 : 0};
        offsets_[number] = std::move(offsets);
        data_[number] = std::move(data);
    }

    // Those of these numbers that are not there, each once. Numbers of no piece are not mentioned.
    std::vector<int64_t> missing(const Int64s& numbers) const {
        std::vector<int64_t> missing;
        for (size_t i = 0; i < numbers.size(); ++i) {
            const int64_t number = numbers.data()[i];
            const bool known = number >= 0 && static_cast<uint64_t>(number) < pieces_.size();
            if (known && !there(static_cast<size_t>(number))) missing.push_back(number);
        }
        std::sort(missing.begin(), missing.end());
        missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
        return missing;
    }

    std::tuple<Array<uint8_t>, Array<int64_t>> cells(const Int64s& piece, const Int64s& row) const {
        check_same_length(piece, "piece", row, "row");
        check_there(piece);
        Gathered gathered = cells_unlocked(piece, row);
        Array<uint8_t> bytes = gathered.data_array(piece.size());
        return {bytes, gathered.offsets_array(piece.size())};
    }

    Array<uint8_t> rows(size_t width, const Int64s& piece, const Int64s& row) const {
        check_same_length(piece, "piece", row, "row");
        check_there(piece);
        auto memory = rows_unlocked(width, piece, row);
        return array_of(memory, piece.size() * width);
    }

private:
    std::vector<CellPiece> pieces_;
    std::vector<std::optional<Bytes>> data_;
    std::vector<std::optional<Int64s>> offsets_;

    bool there(size_t number) const { return data_[number].has_value(); }

    void check_there(const Int64s& piece) const {
        for (size_t i = 0; i < piece.size(); ++i) {
            const int64_t number = piece.data()[i];
            if (number < 0 || static_cast<uint64_t>(number) >= pieces_.size() || !there(static_cast<size_t>(number))) {
                throw_bad_run(static_cast<int64_t>(i));
            }
        }
    }

    Gathered cells_unlocked(const Int64s& piece, const Int64s& row) const {
        nb::gil_scoped_release unlocked;
        const size_t n = piece.size();
        Gathered gathered{std::make_unique_for_overwrite<int64_t[]>(n + 1), nullptr};
        const int64_t bad =
            place_cells(pieces_.data(), pieces_.size(), piece.data(), row.data(), n, gathered.offsets.get());
        if (bad >= 0) throw_bad_run(bad);
        gathered.data = fresh_memory(static_cast<size_t>(gathered.offsets[n]));
        copy_cells(pieces_.data(), piece.data(), row.data(), n, gathered.offsets.get(), gathered.data.get());
        return gathered;
    }

    std::unique_ptr<uint8_t[]> rows_unlocked(size_t width, const Int64s& piece, const Int64s& row) const {
        nb::gil_scoped_release unlocked;
        const size_t n = piece.size();
        const int64_t bad = first_bad_row(pieces_.data(), pieces_.size(), width, piece.data(), row.data(), n);
        if (bad >= 0) throw_bad_run(bad);
        auto out = memory_for(n, width);
        copy_rows(pieces_.data(), width, piece.data(), row.data(), n, out.get());
        return out;
    }
};

std::optional<std::tuple<Array<uint8_t>, Array<int64_t>>> gather_runs(const Bytes& data, const Int64s& starts,
                                                                      const Int64s& sizes, bool if_resident) {
    check_same_length(starts, "starts", sizes, "sizes");
    Gathered gathered = gather_unlocked(data, starts, sizes, if_resident, [&](const int64_t* offsets, uint8_t* out) {
        concatenate_runs(data.data(), starts.data(), offsets, starts.size(), out);
    });
    if (gathered.data == nullptr) return std::nullopt;
    Array<uint8_t> bytes = gathered.data_array(starts.size());
    return std::tuple{bytes, gathered.offsets_array(starts.size())};
}

std::unique_ptr<uint8_t[]> strided_unlocked(const Bytes& data, int64_t start, int64_t stride, int64_t width,
                                            const Int64s& row, bool if_resident) {
    nb::gil_scoped_release unlocked;
    const size_t n = row.size();
    const int64_t bad = first_bad_row(data.size(), start, stride, width, row.data(), n);
    if (bad >= 0) throw_bad_run(bad);
    if (if_resident && resident_fraction(data.data(), start, stride, width, row.data(), n) < 1) return nullptr;
    auto out = memory_for(n, static_cast<size_t>(width));
    copy_rows(data.data(), start, stride, width, row.data(), n, out.get());
    return out;
}

std::optional<Array<uint8_t>> gather_strided(const Bytes& data, int64_t start, int64_t stride, int64_t width,
                                             const Int64s& row, bool if_resident) {
    if (width < 0) throw std::invalid_argument("no row has " + std::to_string(width) + " bytes");
    auto memory = strided_unlocked(data, start, stride, width, row, if_resident);
    if (memory == nullptr) return std::nullopt;
    return array_of(memory, row.size() * static_cast<size_t>(width));
}

std::tuple<std::vector<int64_t>, Array<int64_t>> distinct(const Int64s& numbers) {
    const size_t n = numbers.size();
    const int64_t* given = numbers.data();
    auto place = std::make_unique_for_overwrite<int64_t[]>(n);
    std::vector<int64_t> unique;
    const auto [low, high] = std::minmax_element(given, given + n);
    // Numbers near each other are marked in a table; others have to be sorted.
    constexpr uint64_t near = 1 << 14;
    const uint64_t range = n == 0 ? 0 : static_cast<uint64_t>(*high) - static_cast<uint64_t>(*low);
    if (n > 0 && range < near) {
        std::vector<int64_t> known(range + 1, -1);
        for (size_t i = 0; i < n; ++i) known[static_cast<size_t>(given[i] - *low)] = 0;
        for (size_t at = 0; at <= range; ++at) {
            if (known[at] < 0) continue;
            known[at] = static_cast<int64_t>(unique.size());
            unique.push_back(*low + static_cast<int64_t>(at));
        }
        for (size_t i = 0; i < n; ++i) place[i] = known[static_cast<size_t>(given[i] - *low)];
    } else {
        unique.assign(given, given + n);
        std::sort(unique.begin(), unique.end());
        unique.erase(std::unique(unique.begin(), unique.end()), unique.end());
        for (size_t i = 0; i < n; ++i) {
            place[i] = std::lower_bound(unique.begin(), unique.end(), given[i]) - unique.begin();
        }
    }
    return {std::move(unique), array_of(place, n)};
}

// The piece that every number falls into, and its place there: pieces begin at `starts`, which ascend and end with
// the end of the last. The caller has checked that the numbers are there.
std::tuple<Array<int64_t>, Array<int64_t>> pieces_of(const Int64s& starts, const Int64s& numbers) {
    const size_t n = numbers.size();
    const int64_t *first = starts.data(), *end = first + starts.size();
    auto piece = std::make_unique_for_overwrite<int64_t[]>(n), row = std::make_unique_for_overwrite<int64_t[]>(n);
    // Pieces are often of one size, and then the quotient tells.
    const int64_t each = starts.size() > 1 ? std::max<int64_t>(first[1] - first[0], 1) : 1;
    const auto contains = [&](int64_t guess, int64_t number) {
        return static_cast<uint64_t>(guess) + 1 < starts.size() && first[guess] <= number && number < first[guess + 1];
    };
    int64_t last = 0;
    for (size_t i = 0; i < n; ++i) {
        const int64_t number = numbers.data()[i];
        if (!contains(last, number)) {
            last = number < 0 ? 0 : number / each;
            if (!contains(last, number)) last = std::upper_bound(first, end, number) - first - 1;
            if (last < 0) throw_bad_run(static_cast<int64_t>(i));
        }
        piece[i] = last;
        row[i] = number - first[last];
    }
    return {array_of(piece, n), array_of(row, n)};
}

// The cells as text; nothing if one of them is not UTF-8.
std::optional<nb::typed<nb::list, nb::str>> texts(const Bytes& data, const Int64s& offsets) {
    const size_t n = offsets.size() == 0 ? 0 : offsets.size() - 1;
    using Texts = nb::typed<nb::list, nb::str>;
    auto cells = nb::steal<Texts>(PyList_New(static_cast<Py_ssize_t>(n)));
    if (!cells.is_valid()) throw nb::python_error();
    for (size_t i = 0; i < n; ++i) {
        const int64_t start = offsets.data()[i];
        // Offsets that lie may be so far apart that their difference overflows.
        const auto size =
            static_cast<int64_t>(static_cast<uint64_t>(offsets.data()[i + 1]) - static_cast<uint64_t>(start));
        if (!run_fits(start, size, data.size())) throw_bad_run(static_cast<int64_t>(i));
        const char* from = size > 0 ? reinterpret_cast<const char*>(data.data()) + start : "";
        PyObject* const cell = PyUnicode_FromStringAndSize(from, static_cast<Py_ssize_t>(size));
        if (cell == nullptr) {
            if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) throw nb::python_error();
            PyErr_Clear();
            return std::nullopt;
        }
        // It takes over the reference, even where it fails.
        if (PyList_SetItem(cells.ptr(), static_cast<Py_ssize_t>(i), cell) < 0) throw nb::python_error();
    }
    return cells;
}

}  // namespace

void bind_gather(nb::module_& module) {
    nb::class_<Pieces>(module, "Pieces",
                       "The pieces of a column by number, filled in as they become known. A piece never changes.")
        .def(nb::init<size_t>(), nb::arg("count"))
        .def("put", &Pieces::put, nb::arg("number"), array_arg("data"), array_arg("offsets").none() = nb::none(),
             "Add a piece: its cells one after another, and their offsets unless all have one width.")
        .def("missing", &Pieces::missing, array_arg("numbers"),
             "The numbers of pieces that were not put yet, each once.")
        .def("cells", &Pieces::cells, array_arg("piece"), array_arg("row"),
             "Copy cells, picked by piece and row: data and offsets. IndexError if there is no such cell.")
        .def("rows", &Pieces::rows, nb::arg("width"), array_arg("piece"), array_arg("row"),
             "Copy rows of one width, picked by piece and row. IndexError if there is no such row.");
    module.def("gather_runs", gather_runs, array_arg("data"), array_arg("starts"), array_arg("sizes"),
               nb::arg("if_resident") = false, R"(Copy runs of the data, one after another: data and offsets.

IndexError if any run is out of bounds. if_resident: data is a mapped file; give None, and copy
nothing, unless all of a few of its pages are in memory.)");
    module.def("gather_strided", gather_strided, array_arg("data"), nb::arg("start"), nb::arg("stride"),
               nb::arg("width"), array_arg("row"), nb::arg("if_resident") = false,
               "Copy rows of one width; row i begins at start + i * stride. Otherwise as gather_runs.");
    module.def("pieces_of", pieces_of, array_arg("starts"), array_arg("numbers"),
               "Find the piece that every number falls into, and its place there. Pieces begin at starts, ascending.");
    module.def("texts", texts, array_arg("data"), array_arg("offsets"),
               "Decode the cells between the offsets as a list of str; None if one of them is not UTF-8.");
    module.def("distinct", distinct, array_arg("numbers"),
               "The numbers that occur, ascending, and for each number its place among them.");
}

}  // namespace batchplant
