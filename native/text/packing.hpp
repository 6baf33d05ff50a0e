// Documents of any length to rows of one length: which piece of which document stands where, and the rows themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace batchplant {

enum class Packing {
    none,          // a document for each row
    first_fit,     // in order, into the first row that has room
    best_fit,      // the longest first, each into the row that it fills best
    concat_split,  // one after another, cut where a row ends
};

// Treatment of a document that is longer than a row.
enum class Overlong { split, truncate, drop };

// Row r has the pieces rows[r] to rows[r + 1]: so many tokens of a document from a start on. Rows come in the order of
// their first documents, pieces of a row in the order of documents.
struct Packs {
    std::vector<int64_t> rows{0}, document, start, count;
};

// sizes: tokens of each document, with whatever is added to each; none is below 0.
Packs pack(std::span<const int64_t> sizes, int64_t length, Packing how, Overlong overlong);

// The tokens of each document, wherever they lie; prompt: so many tokens of each are not learned (or empty).
template <typename In>
struct Documents {
    std::vector<std::span<const In>> tokens;
    std::span<const int64_t> prompt;
};

// Each piece takes a multiple of so many tokens of its row; padding follows it.
struct Pieces {
    std::span<const int64_t> rows, document, start, count;
    int64_t multiple = 1;

    int64_t room(size_t piece) const { return (count[piece] + multiple - 1) / multiple * multiple; }
};

// Outputs besides tokens; a null pointer leaves one out.
template <typename Out>
struct Rows {
    int64_t length;
    Out* tokens;
    Out* labels;
    Out* position;
    int32_t* document;
    uint8_t* learned;
    Out pad, ignore;
    // The token after each document, if there is one.
    bool has_end;
    Out end;
    // True if the label of a token is the next token, not the token itself.
    bool shifted;
};

// Location of each piece, as (row, place, count, start, document), and where sequences begin in the rows as
// one: each piece is one with the padding behind it, or with `across` each row, and the padding at the end of a row.
struct Layout {
    std::vector<int64_t> table;
    std::vector<int32_t> cuts;
};
Layout layout_of(const Pieces& pieces, int64_t length, bool across);

// Throws std::invalid_argument if a piece is not within its document, or a row is too short for its pieces.
template <typename In, typename Out>
void fill_rows(const Documents<In>& documents, const Pieces& pieces, const Rows<Out>& into);

}  // namespace batchplant
