#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "text.hpp"

// JSON as RFC 8259 has it, and besides the numbers NaN, Infinity and -Infinity, as Python writes them.

namespace batchplant::json {

// Values are nested no deeper, here or in Python.
constexpr size_t deepest = 960;
// Records with more different keys than this are no table.
constexpr size_t most_keys = 10000;
constexpr size_t most_axes = 8;

struct End {
    const uint8_t* at = nullptr;              // behind the value, or where the fault is
    text::Reason fault = text::Reason::none;  // `ends`: the data end inside of the value
};

// Checks the value that begins at `at`, after blanks.
End skip_value(const uint8_t* at, const uint8_t* end);

// Types and shapes of the values of one key.
struct Key {
    std::string name;
    uint32_t classes = 0;                   // text::Class
    int64_t records = 0;                    // that have the key
    int64_t last = -1;                      // number of the last of them
    uint32_t elements = 0;                  // classes of the numbers in arrays
    uint32_t rank = 0;                      // of the arrays of numbers; 0: none seen
    std::array<int64_t, most_axes> dims{};  // -1: varies
    bool irregular = false;                 // arrays that are no tensors of one rank
    bool empty = false;                     // arrays without an element
};

enum class Layout : uint8_t { lines = 0, stream = 1, array = 2 };

// Finds the records of a file that comes in pieces, and what the values of each key could be.
struct Scanner {
    Layout layout = Layout::lines;
    text::Place place;    // of the next byte
    bool opened = false;  // of an array: whether its bracket was seen, and the one that closes it
    bool closed = false;
    bool comma = false;   // whether an element of the array was seen, so that a comma is due
    bool broken = false;  // the array cannot be read on
    std::vector<int64_t> starts;
    std::vector<text::BadRow> bad;
    std::vector<Key> keys;
    Key bare;  // of records that are no objects
    int64_t objects = 0;
    bool too_many = false;

    // Takes a piece that begins at `base` of the file; gives how many of its bytes were used. What is left over is
    // the beginning of a record and goes before the next piece.
    size_t feed(const uint8_t* piece, size_t size, int64_t base, bool final);

private:
    std::unordered_map<std::string, size_t> places_;

    size_t feed_lines(const uint8_t* piece, size_t size, int64_t base, bool final);
    size_t feed_values(const uint8_t* piece, size_t size, int64_t base, bool final);
    size_t feed_array(const uint8_t* piece, size_t size, int64_t base, bool final);
    void refuse(const uint8_t* piece, size_t from, size_t at, int64_t base, text::Reason reason);
    bool take(const uint8_t* piece, size_t from, size_t begin, size_t end, int64_t base);
    void learn(const uint8_t* at, const uint8_t* end);
    Key* key_of(const uint8_t* at, size_t size, bool escaped, size_t hint);
};

// The numbers are part of the Python API: append, never renumber.
enum class Kind : uint8_t {
    absent = 0,
    null = 1,
    yes = 2,
    no = 3,
    number = 4,
    string = 5,
    escaped = 6,
    array = 7,
    object = 8
};

// Locations of the values of these keys in the records; those of all rows for the first key, then for the second …
// A string is without its quotes. Of a key that comes twice the last value counts. `bare`: a record is the value.
struct Places {
    uint8_t* kind;
    int64_t* start;
    int64_t* size;
};
text::Failure find(const uint8_t* data, size_t total, const int64_t* starts, const int64_t* sizes, size_t n,
                   const std::vector<std::string>& keys, bool bare, Places places);

// Locations of the elements of a JSON array.
text::Failure elements(const uint8_t* data, size_t size, std::vector<int64_t>& starts, std::vector<int64_t>& sizes);

// The text that a string with escapes means, with U+FFFD for half of a pair that stands alone; gives the place behind
// it in `out`, which needs `size` bytes.
uint8_t* unescape(const uint8_t* at, size_t size, uint8_t* out);

// The numbers of nested lists of these sizes (the first may be -1: any), one cell after another.
text::Failure arrays(const uint8_t* data, const int64_t* starts, const int64_t* sizes, size_t n, text::Dtype dtype,
                     const std::vector<int64_t>& dims, std::vector<uint8_t>& out, int64_t* offsets);

// True if each run is one JSON value in UTF-8; missing ones (-1) are.
void check(const uint8_t* data, const int64_t* starts, const int64_t* sizes, size_t n, uint8_t* reasons);

}  // namespace batchplant::json
