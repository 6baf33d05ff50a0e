#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "text.hpp"

// CSV as RFC 4180 has it: quotes may hold delimiters and line ends, two of them stand for one. A line ends with
// LF, CRLF or CR. A quote inside of an unquoted field is a character like any other. Where there is an escape, as the
// backslash that MySQL writes, the character behind it ends neither field nor row.

namespace batchplant::csv {

struct Dialect {
    uint8_t delimiter = ',';
    bool blank_rows = false;           // whether an empty line is a row (of one missing field), else it is passed over
    std::vector<std::string> missing;  // unquoted fields that are these are missing
    uint8_t escape = 0;                // 0: none
};

// Contents of a field besides plain text. The numbers are part of the Python API: append, never renumber.
enum Special : uint8_t { doubled = 1, escaped = 2 };  // two quotes for one; an escape

struct Field {
    size_t start = 0;  // of the content, without the quotes
    size_t size = 0;
    bool quoted = false;
    uint8_t special = 0;  // Special, several added
};

struct Row {
    size_t end = 0;  // behind the line's end
    size_t fields = 0;
    text::Reason fault = text::Reason::none;
    size_t fault_at = 0;
    bool complete = false;  // else the data end before the row does
};

// The fields of the first row that begins at `at`. `final`: nothing comes behind the data.
Row first_row(const uint8_t* data, size_t size, size_t at, const Dialect& dialect, bool final,
              std::vector<Field>& fields);

// Finds the rows of a file that comes in pieces, and what the cells of each column could be.
struct Scanner {
    Dialect dialect;
    size_t columns = 1;
    int64_t line = 1;
    std::vector<int64_t> starts;
    std::vector<text::BadRow> bad;
    std::vector<uint32_t> classes;  // of each column, text::Class

    // Takes a piece that begins at `base` of the file; gives how many of its bytes were used. What is left over is
    // the beginning of a row and goes before the next piece.
    size_t feed(const uint8_t* piece, size_t size, int64_t base, bool final);
};

// Locations of cells: start and size (-1: missing) of their content, and their Special contents. The entries of all
// rows for the first wanted column, then for the second … `empty` for each of these: whether an empty field is an empty
// cell, and not a missing one.
text::Failure find(const uint8_t* data, size_t total, const int64_t* starts, const int64_t* sizes, size_t n,
                   const Dialect& dialect, size_t columns, const std::vector<int64_t>& wanted,
                   const std::vector<bool>& empty, int64_t* start, int64_t* size, uint8_t* special);

// The text that such a cell means: one quote for two, and what escapes stand for. Those of letters are MySQL's (n, t,
// r, b, 0, Z); any other character stands for itself. Gives the place behind it in `out`, which needs `size` bytes.
uint8_t* unquote(const uint8_t* at, size_t size, uint8_t special, uint8_t escape, uint8_t* out);

}  // namespace batchplant::csv
