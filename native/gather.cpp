#include "gather.hpp"

#include <cstring>
#include <limits>

#include "bytes.hpp"

namespace batchplant {

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
    for (size_t i = 0; i < n; ++i) {
        if (i + 1 < n) {
            const CellPiece& next = pieces[piece[i + 1]];
            prefetch_run(next.data + next.offsets[row[i + 1]], offsets[i + 2] - offsets[i + 1]);
        }
        const int64_t size = offsets[i + 1] - offsets[i];
        // An empty cell may come with a null buffer, which memcpy must not be given.
        if (size == 0) continue;
        const CellPiece& from = pieces[piece[i]];
        std::memcpy(out + offsets[i], from.data + from.offsets[row[i]], static_cast<size_t>(size));
    }
}

void copy_in_turn(const uint8_t* data, const int64_t* starts, const int64_t* offsets, size_t n, uint8_t* out) {
    for (size_t i = 0; i < n; ++i) {
        if (i + 2 < n) prefetch_run(data + starts[i + 2], offsets[i + 3] - offsets[i + 2]);
        const int64_t size = offsets[i + 1] - offsets[i];
        if (size > 0) std::memcpy(out + offsets[i], data + starts[i], static_cast<size_t>(size));
    }
}

int64_t copy_rows(const RowPiece* pieces, size_t count, size_t width, const int64_t* piece, const int64_t* row,
                  size_t n, uint8_t* out) {
    if (width == 0) return -1;
    for (size_t i = 0; i < n; ++i) {
        const bool known = piece[i] >= 0 && static_cast<uint64_t>(piece[i]) < count;
        if (!known || row[i] < 0 || static_cast<uint64_t>(row[i]) >= pieces[piece[i]].size / width) {
            return static_cast<int64_t>(i);
        }
    }
    for (size_t i = 0; i < n; ++i) {
        if (i + 1 < n) {
            prefetch_run(pieces[piece[i + 1]].data + static_cast<size_t>(row[i + 1]) * width,
                         static_cast<int64_t>(width));
        }
        std::memcpy(out + i * width, pieces[piece[i]].data + static_cast<size_t>(row[i]) * width, width);
    }
    return -1;
}

}  // namespace batchplant
