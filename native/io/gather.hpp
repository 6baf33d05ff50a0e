#pragma once

#include <cstddef>
#include <cstdint>

namespace batchplant {

// A piece of a column: cells one after another. Cell i is [offsets[i], offsets[i + 1]) of the data. Where all cells
// have one width, there are no offsets.
struct CellPiece {
    const uint8_t* data;
    size_t size;
    const int64_t* offsets;
    size_t cells;
};

// Computes n + 1 offsets of cells, each picked by piece and row, that are to lie one after another.
// Every pick is checked against its piece; returns the first bad one, or -1.
int64_t place_cells(const CellPiece* pieces, size_t count, const int64_t* piece, const int64_t* row, size_t n,
                    int64_t* offsets);

// Copies picks that place_cells has placed.
void copy_cells(const CellPiece* pieces, const int64_t* piece, const int64_t* row, size_t n, const int64_t* offsets,
                uint8_t* out);

// The first pick that is no row of its piece, or -1.
int64_t first_bad_row(const CellPiece* pieces, size_t count, size_t width, const int64_t* piece, const int64_t* row,
                      size_t n);

// Copies rows of one width that first_bad_row has found good.
void copy_rows(const CellPiece* pieces, size_t width, const int64_t* piece, const int64_t* row, size_t n, uint8_t* out);

// The first of these rows of one width, each a stride behind the one before it, that does not lie in the data, or -1.
int64_t first_bad_row(size_t size, int64_t start, int64_t stride, int64_t width, const int64_t* row, size_t n);

// Copies such rows.
void copy_rows(const uint8_t* data, int64_t start, int64_t stride, int64_t width, const int64_t* row, size_t n,
               uint8_t* out);

// Runs of data that lie within it, one after another in out; offsets are theirs there.
void concatenate_runs(const uint8_t* data, const int64_t* starts, const int64_t* offsets, size_t n, uint8_t* out);

}  // namespace batchplant
