#include "csv.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace batchplant::csv {
namespace {

using text::Reason;

// The bytes that end a field that is not quoted.
struct Stops {
    std::array<bool, 256> at{};

    explicit Stops(const Dialect& dialect) {
        at[dialect.delimiter] = at['\n'] = at['\r'] = true;
        if (dialect.escape != 0) at[dialect.escape] = true;
    }
};

// The next quote or escape from `at` on; `size` where there is none.
size_t find_quote(const uint8_t* data, size_t size, size_t at, uint8_t escape) {
    if (escape == 0) {
        const void* const found = at < size ? std::memchr(data + at, '"', size - at) : nullptr;
        return found == nullptr ? size : static_cast<size_t>(static_cast<const uint8_t*>(found) - data);
    }
    while (at < size && data[at] != '"' && data[at] != escape) ++at;
    return at;
}

bool is_missing(const uint8_t* at, const Field& field, const Dialect& dialect) {
    if (field.quoted) return false;
    for (const std::string& one : dialect.missing) {
        if (one.size() == field.size && std::memcmp(one.data(), at + field.start, field.size) == 0) return true;
    }
    return false;
}

// Calls take(number, field) for every field of the row at `at`.
template <typename Take>
Row walk(const uint8_t* data, size_t size, size_t at, const Dialect& dialect, const Stops& stops, bool final,
         Take&& take) {
    const uint8_t delimiter = dialect.delimiter;
    const uint8_t escape = dialect.escape;
    Row row;
    const auto faulty = [&](Reason reason, size_t place) {
        row.fault = reason;
        row.fault_at = place;
        // Whatever is wrong with it, the next line may be sound again.
        const size_t from = reason == Reason::open_quote ? at : place;
        const void* const line = from < size ? std::memchr(data + from, '\n', size - from) : nullptr;
        row.complete = line != nullptr || final;
        row.end = line != nullptr ? static_cast<size_t>(static_cast<const uint8_t*>(line) - data) + 1 : size;
        return row;
    };
    size_t i = at;
    while (true) {
        Field field;
        if (i < size && data[i] == '"') {
            const size_t quote = i;
            field.quoted = true;
            field.start = ++i;
            while (true) {
                i = find_quote(data, size, i, escape);
                if (i == size) return final ? faulty(Reason::open_quote, quote) : row;
                const bool quotes = data[i++] == '"';
                if (i == size && !final) return row;
                if (quotes && (i == size || data[i] != '"')) break;
                field.special |= quotes ? doubled : escaped;
                i += i < size;
            }
            field.size = i - 1 - field.start;
            if (i < size && data[i] != delimiter && data[i] != '\n' && data[i] != '\r') {
                return faulty(Reason::behind_quote, i);
            }
        } else {
            field.start = i;
            while (i < size && (!stops.at[data[i]] || (escape != 0 && data[i] == escape))) {
                if (escape != 0 && data[i] == escape) {
                    field.special = escaped;
                    i += i + 1 < size;
                }
                ++i;
            }
            field.size = i - field.start;
        }
        if (i == size && !final) return row;
        take(row.fields++, field);
        if (i < size && data[i] == delimiter) {
            ++i;
            continue;
        }
        if (i < size && data[i] == '\r') {
            if (i + 1 == size && !final) return row;
            ++i;
            if (i < size && data[i] == '\n') ++i;
        } else if (i < size) {
            ++i;
        }
        row.end = i;
        row.complete = true;
        return row;
    }
}

// The line's end alone, where there is one.
size_t blank_line(const uint8_t* data, size_t size, size_t at) {
    if (data[at] == '\n') return 1;
    if (data[at] != '\r') return 0;
    return at + 1 < size && data[at + 1] == '\n' ? 2 : 1;
}

int64_t lines_in(const uint8_t* data, size_t at, size_t end) {
    int64_t count = 0;
    for (size_t i = at; i < end; ++i) {
        count += data[i] == '\n' || (data[i] == '\r' && (i + 1 == end || data[i + 1] != '\n'));
    }
    return count;
}

}  // namespace

Row first_row(const uint8_t* data, size_t size, size_t at, const Dialect& dialect, bool final,
              std::vector<Field>& fields) {
    return walk(data, size, at, dialect, Stops(dialect), final,
                [&](size_t, const Field& field) { fields.push_back(field); });
}

size_t Scanner::feed(const uint8_t* piece, size_t size, int64_t base, bool final) {
    classes.resize(columns, 0);
    std::vector<uint32_t> found(columns);
    const Stops stops(dialect);
    size_t at = 0;
    while (at < size) {
        if (const size_t blank = blank_line(piece, size, at); blank > 0 && !dialect.blank_rows) {
            if (piece[at] == '\r' && at + 1 == size && !final) break;
            at += blank;
            ++line;
            continue;
        }
        bool several = false;
        Row row = walk(piece, size, at, dialect, stops, final, [&](size_t number, const Field& field) {
            several = several || field.quoted || field.special != 0;
            if (number >= columns) return;
            // In a column that is text already, only missing cells are still of interest.
            if (is_missing(piece, field, dialect)) {
                found[number] = text::missing;
            } else if ((classes[number] & text::other) != 0) {
                found[number] = text::other;
            } else {
                found[number] = text::classify(piece + field.start, piece + field.start + field.size);
            }
        });
        if (!row.complete) break;
        if (row.fault == Reason::none && row.fields != columns) {
            row.fault = Reason::ragged;
            row.fault_at = at;
        }
        if (row.fault == Reason::none) {
            const size_t valid = text::valid_utf8(piece + at, row.end - at);
            if (valid < row.end - at) {
                row.fault = Reason::utf8;
                row.fault_at = at + valid;
            }
        }
        if (row.fault == Reason::none) {
            starts.push_back(base + static_cast<int64_t>(at));
            for (size_t i = 0; i < columns; ++i) classes[i] |= found[i];
            line += several ? lines_in(piece, at, row.end) : 1;
        } else {
            bad.push_back({base + static_cast<int64_t>(row.fault_at),
                           text::place_of(piece + at, row.fault_at - at, {line, 1}), row.fault,
                           static_cast<int64_t>(row.fields)});
            line += lines_in(piece, at, row.end);
        }
        at = row.end;
    }
    return at;
}

text::Failure find(const uint8_t* data, size_t total, const int64_t* starts, const int64_t* sizes, size_t n,
                   const Dialect& dialect, size_t columns, const std::vector<int64_t>& wanted,
                   const std::vector<bool>& empty, int64_t* start, int64_t* size, uint8_t* special) {
    // Entry of a column, -1 for none.
    std::vector<int64_t> place(columns, -1);
    for (size_t i = 0; i < wanted.size(); ++i) {
        if (wanted[i] >= 0 && static_cast<size_t>(wanted[i]) < columns) {
            place[static_cast<size_t>(wanted[i])] = static_cast<int64_t>(i);
        }
    }
    const Stops stops(dialect);
    for (size_t row = 0; row < n; ++row) {
        if (starts[row] < 0 || sizes[row] < 0 || static_cast<size_t>(starts[row]) > total ||
            static_cast<size_t>(sizes[row]) > total - static_cast<size_t>(starts[row])) {
            return {static_cast<int64_t>(row), starts[row], "the row does not lie in the file"};
        }
        const auto at = static_cast<size_t>(starts[row]);
        const Row found = walk(data, at + static_cast<size_t>(sizes[row]), at, dialect, stops, true,
                               [&](size_t number, const Field& field) {
                                   if (number >= columns || place[number] < 0) return;
                                   const auto entry = static_cast<size_t>(place[number]);
                                   const size_t to = entry * n + row;
                                   const bool missing = is_missing(data, field, dialect) && !empty[entry];
                                   start[to] = static_cast<int64_t>(field.start);
                                   size[to] = missing ? -1 : static_cast<int64_t>(field.size);
                                   special[to] = field.special;
                               });
        if (found.fault != Reason::none || found.fields != columns) {
            return {static_cast<int64_t>(row), starts[row], "the row is not the one that was indexed"};
        }
    }
    return {};
}

namespace {

uint8_t meaning_of(uint8_t letter) {
    switch (letter) {
        case '0': return 0;
        case 'b': return '\b';
        case 'n': return '\n';
        case 'r': return '\r';
        case 't': return '\t';
        case 'Z': return 26;
        default: return letter;
    }
}

}  // namespace

uint8_t* unquote(const uint8_t* at, size_t size, uint8_t special, uint8_t escape, uint8_t* out) {
    for (size_t i = 0; i < size; ++i) {
        if ((special & escaped) != 0 && at[i] == escape && i + 1 < size) {
            *out++ = meaning_of(at[++i]);
            continue;
        }
        *out++ = at[i];
        if ((special & doubled) != 0 && at[i] == '"' && i + 1 < size && at[i + 1] == '"') ++i;
    }
    return out;
}

}  // namespace batchplant::csv
