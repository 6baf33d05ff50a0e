#include "gather.hpp"

#include <cstring>
#include <limits>

#include "bytes.hpp"

namespace batchplant {

namespace {

// The end of the rows from number `i` on that follow each other in one piece: they are copied at once.
size_t end_of_rows(const int64_t* piece, const int64_t* row, size_t i, size_t n) {
    size_t end = i + 1;
    while (end < n && row[end] == row[end - 1] + 1 && piece[end] == piece[i]) ++end;
    return end;
}

}  // namespace

int64_t place_cells(const CellPiece* pieces, size_t count, const int64_t* piece, const int64_t* row, size_t n,
                    int64_t* offsets) {
    int64_t end = 0;
    offsets[0] = 0;
    for (size_t i = 0; i < n; ++i) {
        const auto bad = static_cast<int64_t>(i);
        if (piece[i] < 0 || static_cast<uint64_t>(piece[i]) >= count) return bad;
        const CellPiece& from = pieces[piece[i]];
        if (row[i] < 0 || static_cast<uint64_t>(row[i]) >= from.cells) return bad;
        const int64_t start = from.offsets[row[i]];
        const int64_t stop = from.offsets[row[i] + 1];
        if (start < 0 || stop < start || static_cast<uint64_t>(stop) > from.size) return bad;
        if (stop - start > std::numeric_limits<int64_t>::max() - end) return bad;
        end += stop - start;
        offsets[i + 1] = end;
    }
    return -1;
}

void copy_cells(const CellPiece* pieces, const int64_t* piece, const int64_t* row, size_t n, const int64_t* offsets,
                uint8_t* out) {
    for (size_t i = 0, end; i < n; i = end) {
        end = end_of_rows(piece, row, i, n);
        if (end < n) {
            const CellPiece& next = pieces[piece[end]];
            prefetch_run(next.data + next.offsets[row[end]], offsets[end + 1] - offsets[end]);
        }
        const int64_t size = offsets[end] - offsets[i];
        // An empty cell may come with a null buffer, which memcpy must not be given.
        if (size == 0) continue;
        const CellPiece& from = pieces[piece[i]];
        std::memcpy(out + offsets[i], from.data + from.offsets[row[i]], static_cast<size_t>(size));
    }
}

void concatenate_runs(const uint8_t* data, const int64_t* starts, const int64_t* offsets, size_t n, uint8_t* out) {
    for (size_t i = 0, end; i < n; i = end) {
        end = i + 1;
        // Runs that lie one behind the other are one.
        while (end < n && starts[end] == starts[i] + (offsets[end] - offsets[i])) ++end;
        if (end + 1 < n) prefetch_run(data + starts[end + 1], offsets[end + 2] - offsets[end + 1]);
        const int64_t size = offsets[end] - offsets[i];
        if (size > 0) std::memcpy(out + offsets[i], data + starts[i], static_cast<size_t>(size));
    }
}

int64_t first_bad_row(const CellPiece* pieces, size_t count, size_t width, const int64_t* piece, const int64_t* row,
                      size_t n) {
    // Divisions are slow, and the next row is often of the same piece.
    int64_t last = -1;
    uint64_t rows = 0;
    for (size_t i = 0; i < n; ++i) {
        if (piece[i] != last) {
            last = piece[i];
            const bool known = last >= 0 && static_cast<uint64_t>(last) < count;
            rows = known && width > 0 ? pieces[last].size / width : 0;
        }
        if (row[i] < 0 || static_cast<uint64_t>(row[i]) >= rows) return static_cast<int64_t>(i);
    }
    return -1;
}

void copy_rows(const CellPiece* pieces, size_t width, const int64_t* piece, const int64_t* row, size_t n,
               uint8_t* out) {
    const auto at = [&](size_t i) { return pieces[piece[i]].data + static_cast<size_t>(row[i]) * width; };
    for (size_t i = 0, end; i < n; i = end) {
        end = end_of_rows(piece, row, i, n);
        if (end + 1 < n) prefetch_run(at(end + 1), static_cast<int64_t>(width));
        std::memcpy(out + i * width, at(i), (end - i) * width);
    }
}

int64_t first_bad_row(size_t size, int64_t start, int64_t stride, int64_t width, const int64_t* row, size_t n) {
    if (n > 0 && (stride < 0 || !run_fits(start, width, size))) return 0;
    // No row begins behind this place.
    const auto last = static_cast<int64_t>(size) - width;
    const int64_t most = stride == 0 ? std::numeric_limits<int64_t>::max() : (last - start) / stride;
    for (size_t i = 0; i < n; ++i) {
        if (row[i] < 0 || row[i] > most) return static_cast<int64_t>(i);
    }
    return -1;
}

void copy_rows(const uint8_t* data, int64_t start, int64_t stride, int64_t width, const int64_t* row, size_t n,
               uint8_t* out) {
    const auto at = [&](size_t i) { return data + start + row[i] * stride; };
    if (width <= 0) return;
    const auto bytes = static_cast<size_t>(width);
    for (size_t i = 0, end; i < n; i = end) {
        end = i + 1;
        while (stride == width && end < n && row[end] == row[end - 1] + 1) ++end;
        if (end + 1 < n) prefetch_run(at(end + 1), width);
        std::memcpy(out + i * bytes, at(i), (end - i) * bytes);
    }
}

}  // namespace batchplant
