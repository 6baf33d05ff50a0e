#include "packing.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "../kernels/bits.hpp"

namespace batchplant {
namespace {

constexpr int64_t longest_row = int64_t{1} << 24;

// Rows by the room that is left in them.
class ByRoom {
public:
    explicit ByRoom(int64_t length) : newest_(static_cast<size_t>(length) + 1, -1), rooms_(newest_.size()) {}

    void add(int64_t room, int64_t row) {
        if (static_cast<size_t>(row) >= older_.size()) older_.resize(static_cast<size_t>(row) + 1, -1);
        older_[static_cast<size_t>(row)] = newest_[static_cast<size_t>(room)];
        newest_[static_cast<size_t>(room)] = row;
        rooms_.set(static_cast<size_t>(room));
    }

    // Takes out the row with the least room that is enough: (room, row), or (-1, -1).
    std::pair<int64_t, int64_t> take(int64_t needed) {
        const int64_t room = rooms_.next(static_cast<size_t>(needed));
        if (room < 0) return {-1, -1};
        const int64_t row = newest_[static_cast<size_t>(room)];
        newest_[static_cast<size_t>(room)] = older_[static_cast<size_t>(row)];
        if (newest_[static_cast<size_t>(room)] < 0) rooms_.clear(static_cast<size_t>(room));
        return {room, row};
    }

private:
    std::vector<int64_t> newest_, older_;
    Bits rooms_;
};

// The leftmost row with enough room: a tree of the most room in each half.
class Leftmost {
public:
    explicit Leftmost(size_t rows) : leaves_(std::bit_ceil(std::max<size_t>(rows, 1))), most_(2 * leaves_, 0) {}

    void set(size_t row, int64_t room) {
        size_t at = leaves_ + row;
        most_[at] = room;
        for (at /= 2; at; at /= 2) most_[at] = std::max(most_[2 * at], most_[2 * at + 1]);
    }
    int64_t room(size_t row) const { return most_[leaves_ + row]; }

    int64_t find(int64_t needed) const {
        if (most_[1] < needed) return -1;
        size_t at = 1;
        while (at < leaves_) at = 2 * at + (most_[2 * at] < needed);
        return static_cast<int64_t>(at - leaves_);
    }

private:
    size_t leaves_;
    std::vector<int64_t> most_;
};

struct Piece {
    int64_t document, start, count;
};

// Pieces that fit into a row each, in the order of documents.
std::vector<Piece> fitting(std::span<const int64_t> sizes, int64_t length, Overlong overlong) {
    std::vector<Piece> found;
    found.reserve(sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) {
        const auto document = static_cast<int64_t>(i);
        int64_t start = 0, size = sizes[i];
        if (size > length && overlong == Overlong::drop) continue;
        if (size > length && overlong == Overlong::truncate) size = length;
        for (; size - start > length; start += length) found.push_back({document, start, length});
        if (size > start) found.push_back({document, start, size - start});
    }
    return found;
}

// The pieces from the longest to the shortest; of one length, in order.
std::vector<size_t> longest_first(const std::vector<Piece>& pieces, int64_t length) {
    std::vector<size_t> sorted(pieces.size());
    if (static_cast<size_t>(length) > 16 * pieces.size()) {
        std::iota(sorted.begin(), sorted.end(), size_t{0});
        std::stable_sort(sorted.begin(), sorted.end(),
                         [&](size_t a, size_t b) { return pieces[a].count > pieces[b].count; });
        return sorted;
    }
    std::vector<size_t> first(static_cast<size_t>(length) + 2, 0);
    for (const Piece& piece : pieces) ++first[static_cast<size_t>(length - piece.count) + 1];
    std::partial_sum(first.begin(), first.end(), first.begin());
    for (size_t i = 0; i < pieces.size(); ++i) sorted[first[static_cast<size_t>(length - pieces[i].count)]++] = i;
    return sorted;
}

// Row of each piece.
std::vector<int64_t> rows_of(const std::vector<Piece>& pieces, int64_t length, Packing how) {
    std::vector<int64_t> row(pieces.size());
    int64_t rows = 0;
    if (how == Packing::none) {
        std::iota(row.begin(), row.end(), int64_t{0});
    } else if (how == Packing::first_fit) {
        Leftmost open(pieces.size());
        for (size_t i = 0; i < pieces.size(); ++i) {
            int64_t found = open.find(pieces[i].count);
            if (found < 0) open.set(static_cast<size_t>(found = rows++), length);
            const auto at = static_cast<size_t>(found);
            open.set(at, open.room(at) - pieces[i].count);
            row[i] = found;
        }
    } else {
        ByRoom open(length);
        for (const size_t i : longest_first(pieces, length)) {
            auto [room, found] = open.take(pieces[i].count);
            if (found < 0) room = length, found = rows++;
            row[i] = found;
            if (room > pieces[i].count) open.add(room - pieces[i].count, found);
        }
    }
    return row;
}

}  // namespace

Packs pack(std::span<const int64_t> sizes, int64_t length, Packing how, Overlong overlong) {
    if (length < 1 || length > longest_row) throw std::invalid_argument("no row has that length");
    if (std::any_of(sizes.begin(), sizes.end(), [](int64_t size) { return size < 0; })) {
        throw std::invalid_argument("no document is shorter than nothing");
    }
    Packs made;
    const auto put = [&](const Piece& piece) {
        made.document.push_back(piece.document);
        made.start.push_back(piece.start);
        made.count.push_back(piece.count);
    };
    const auto end_row = [&] { made.rows.push_back(static_cast<int64_t>(made.document.size())); };
    if (how == Packing::concat_split) {
        int64_t room = length;
        for (size_t i = 0; i < sizes.size(); ++i) {
            if (sizes[i] > length && overlong == Overlong::drop) continue;
            const int64_t size = overlong == Overlong::truncate ? std::min(sizes[i], length) : sizes[i];
            for (int64_t start = 0; start < size;) {
                const int64_t count = std::min(room, size - start);
                put({static_cast<int64_t>(i), start, count});
                start += count;
                if (!(room -= count)) end_row(), room = length;
            }
        }
        if (room < length) end_row();
        return made;
    }
    const std::vector<Piece> pieces = fitting(sizes, length, overlong);
    const std::vector<int64_t> row = rows_of(pieces, length, how);
    // Rows by their first piece, pieces of a row in order: a counting sort by renamed rows.
    std::vector<int64_t> renamed(pieces.size(), -1);
    int64_t rows = 0;
    for (const int64_t one : row) {
        if (renamed[static_cast<size_t>(one)] < 0) renamed[static_cast<size_t>(one)] = rows++;
    }
    made.rows.assign(static_cast<size_t>(rows) + 1, 0);
    for (const int64_t one : row) ++made.rows[static_cast<size_t>(renamed[static_cast<size_t>(one)]) + 1];
    std::partial_sum(made.rows.begin(), made.rows.end(), made.rows.begin());
    std::vector<int64_t> next(made.rows.begin(), made.rows.end());
    made.document.resize(pieces.size());
    made.start.resize(pieces.size());
    made.count.resize(pieces.size());
    for (size_t i = 0; i < pieces.size(); ++i) {
        const auto at = static_cast<size_t>(next[static_cast<size_t>(renamed[static_cast<size_t>(row[i])])]++);
        made.document[at] = pieces[i].document;
        made.start[at] = pieces[i].start;
        made.count[at] = pieces[i].count;
    }
    return made;
}

namespace {

// One piece at its place in a row. The pointers of `into` are those of the row.
template <typename In, typename Out>
void fill_piece(std::span<const In> document, int64_t prompt, int64_t start, int64_t count, int64_t at, int32_t number,
                const Rows<Out>& into) {
    const auto size = static_cast<int64_t>(document.size());
    const int64_t stored = std::clamp<int64_t>(size - start, 0, count);
    Out* const __restrict tokens = into.tokens + at;
    // Past the stored ones is the end token.
    if constexpr (sizeof(In) == sizeof(Out)) {
        if (stored) std::memcpy(tokens, document.data() + start, static_cast<size_t>(stored) * sizeof(Out));
    } else {
        std::transform(document.data() + start, document.data() + start + stored, tokens,
                       [](In token) { return static_cast<Out>(token); });
    }
    std::fill(tokens + stored, tokens + count, into.end);
    if (into.position) std::iota(into.position + at, into.position + at + count, Out{0});
    if (into.document) std::fill_n(into.document + at, count, number);
    if (!into.labels && !into.learned) return;
    // A label is learned where its token is not of the prompt, and, shifted, where there is a next token.
    const int64_t end = size + into.has_end, shift = into.shifted;
    const int64_t learned_from = std::clamp<int64_t>(prompt - shift - start, 0, count);
    // The piece after this one is in another row: its first token is still the label of our last.
    const int64_t learned_to = std::clamp<int64_t>(end - shift - start, learned_from, count);
    if (into.labels) {
        Out* const labels = into.labels + at;
        std::fill_n(labels, learned_from, into.ignore);
        // The tokens of this piece, all but the last shifted one, which lies behind it.
        const int64_t here = std::min(learned_to, count - shift);
        if (here > learned_from) std::copy(tokens + learned_from + shift, tokens + here + shift, labels + learned_from);
        if (here < learned_to && here >= learned_from) {
            const int64_t next = start + count;
            labels[here] = next < size ? static_cast<Out>(document[static_cast<size_t>(next)]) : into.end;
        }
        std::fill(labels + learned_to, labels + count, into.ignore);
    }
    if (into.learned) {
        std::fill_n(into.learned + at, count, uint8_t{0});
        std::fill(into.learned + at + learned_from, into.learned + at + learned_to, uint8_t{1});
    }
}

}  // namespace

template <typename In, typename Out>
void fill_rows(const Documents<In>& documents, const Pieces& pieces, const Rows<Out>& into) {
    const auto wrong = [](bool is) {
        if (is) throw std::invalid_argument("a piece is not within its document, or not within its row");
    };
    const auto known = static_cast<int64_t>(documents.tokens.size()), length = into.length;
    wrong(pieces.rows.empty());
    for (size_t row = 0; row + 1 < pieces.rows.size(); ++row) {
        Rows<Out> out = into;
        const auto skipped = static_cast<ptrdiff_t>(row) * length;
        out.tokens += skipped;
        if (out.labels) out.labels += skipped;
        if (out.position) out.position += skipped;
        if (out.document) out.document += skipped;
        if (out.learned) out.learned += skipped;
        const int64_t first = pieces.rows[row], last = pieces.rows[row + 1];
        wrong(first < 0 || last < first || last > static_cast<int64_t>(pieces.document.size()));
        const auto pad = [&](int64_t begin, int64_t end) {
            std::fill(out.tokens + begin, out.tokens + end, into.pad);
            if (out.labels) std::fill(out.labels + begin, out.labels + end, into.ignore);
            if (out.document) std::fill(out.document + begin, out.document + end, int32_t{-1});
            if (out.learned) std::fill(out.learned + begin, out.learned + end, uint8_t{0});
        };
        int64_t at = 0;
        for (int64_t i = first; i < last; ++i) {
            const auto piece = static_cast<size_t>(i);
            const int64_t one = pieces.document[piece], start = pieces.start[piece], count = pieces.count[piece];
            wrong(one < 0 || one >= known);
            const auto own = documents.tokens[static_cast<size_t>(one)];
            const auto size = static_cast<int64_t>(own.size());
            wrong(start < 0 || count < 0 || start + count > size + into.has_end || count > length - at);
            const int64_t end = at + pieces.room(piece);
            wrong(end > length);
            const int64_t prompt = documents.prompt.empty() ? 0 : documents.prompt[static_cast<size_t>(one)];
            fill_piece<In, Out>(own, prompt, start, count, at, static_cast<int32_t>(i - first), out);
            pad(at + count, end);
            // Padding is part of its sequence.
            if (out.position) std::iota(out.position + at + count, out.position + end, static_cast<Out>(count));
            at = end;
        }
        pad(at, length);
        if (out.position) std::iota(out.position + at, out.position + length, Out{0});
    }
}

Layout layout_of(const Pieces& pieces, int64_t length, bool across) {
    const auto wrong = [](bool is) {
        if (is) throw std::invalid_argument("the pieces are not those of rows");
    };
    wrong(pieces.rows.empty() || length < 1);
    const auto rows = static_cast<int64_t>(pieces.rows.size()) - 1,
               known = static_cast<int64_t>(pieces.document.size());
    wrong(rows > std::numeric_limits<int32_t>::max() / length);
    Layout made;
    made.table.reserve(5 * pieces.document.size());
    made.cuts.reserve(pieces.document.size() + 2 * pieces.rows.size());
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t first = pieces.rows[static_cast<size_t>(row)], last = pieces.rows[static_cast<size_t>(row) + 1];
        wrong(first < 0 || last < first || last > known);
        const auto cut = [&](int64_t place) { made.cuts.push_back(static_cast<int32_t>(row * length + place)); };
        int64_t place = 0;
        for (int64_t i = first; i < last; ++i) {
            const auto one = static_cast<size_t>(i);
            wrong(pieces.count[one] < 0 || pieces.count[one] > length - place || pieces.room(one) > length - place);
            if (pieces.count[one] && (!across || !place)) cut(place);
            made.table.insert(made.table.end(),
                              {row, place, pieces.count[one], pieces.start[one], pieces.document[one]});
            place += pieces.room(one);
        }
        if (place < length) cut(place);
    }
    made.cuts.push_back(static_cast<int32_t>(rows * length));
    return made;
}

#define BATCHPLANT_FILL(In)                                                                          \
    template void fill_rows<In, int32_t>(const Documents<In>&, const Pieces&, const Rows<int32_t>&); \
    template void fill_rows<In, int64_t>(const Documents<In>&, const Pieces&, const Rows<int64_t>&);
BATCHPLANT_FILL(uint8_t)
BATCHPLANT_FILL(uint16_t)
BATCHPLANT_FILL(int32_t)
BATCHPLANT_FILL(uint32_t)
BATCHPLANT_FILL(int64_t)
#undef BATCHPLANT_FILL

}  // namespace batchplant
