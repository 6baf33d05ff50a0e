#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace batchplant::msgpack {

// The numbers are part of the Python API (batchplant._native.msgpack_find): append, never renumber.
enum class Kind : uint8_t {
    absent = 0,
    nil = 1,
    boolean = 2,
    integer = 3,  // negative, or written as signed
    natural = 4,  // written as unsigned
    real = 5,
    text = 6,
    binary = 7,
    array = 8,
    map = 9,
    extension = 10,
};

// Head of a value. A number's payload is its big-endian bytes; for the forms of one byte
// the byte itself, which reads the same as an integer of 8 bits.
struct Token {
    Kind kind = Kind::absent;
    uint8_t head = 0;      // bytes before the payload
    int8_t type = 0;       // of an extension
    uint64_t payload = 0;  // bytes; 0 for arrays and maps, whose elements are values of their own
    uint64_t values = 0;   // how many values follow inside: elements of an array, keys and values of a map
};

// unfinished: the bytes end inside of a value. invalid: the byte 0xC1, which the format never uses.
enum class Fault : uint8_t { none = 0, unfinished = 1, invalid = 2 };

Fault read_token(const uint8_t* at, const uint8_t* end, Token& token);

// The byte behind the value that begins at `at`, or null. However deep the value is nested, this takes no
// memory: it counts the values that are still to come.
const uint8_t* skip_value(const uint8_t* at, const uint8_t* end);

// State of a scan, so that a stream of values can be scanned in chunks.
struct Scanner {
    uint64_t todo = 0;  // values that are still to come before the next one at the top
    uint64_t skip = 0;  // bytes of a payload that are still to come
    Fault fault = Fault::none;
    std::vector<int64_t> starts;  // of values at the top, counted from the first piece

    // Takes a piece of the stream that begins at `base` and stops when there are `most` values, or at a fault.
    // `left` is what the whole stream still holds from the piece's start on: a value that claims more is
    // unfinished. Gives how many bytes were used; what is left over is the beginning of a token and goes
    // before the next piece.
    size_t feed(const uint8_t* piece, size_t size, int64_t base, uint64_t left, uint64_t most);
};

// An error, its row (-1: no error), and its byte in the data.
struct Failure {
    int64_t row = -1;
    int64_t offset = 0;
    const char* reason = "";
};

// Locations of values: `info` is kind | head << 8 | extension type << 16; `start` and `size` are those of the
// whole value, head and all. The entries of all rows for the first key, then for the second …
struct Places {
    int32_t* info;
    int64_t* start;
    int64_t* size;
};

// Walks the map of every row once and finds the values of these keys; keys that are not asked for are skipped,
// and of a key that comes twice the last value counts, as in a Python dict.
Failure find(const uint8_t* data, size_t total, const int64_t* starts, const int64_t* sizes, size_t n,
             const std::vector<std::string>& keys, Places places);

// Every row is one value, which is no map.
Failure find_values(const uint8_t* data, size_t total, const int64_t* starts, const int64_t* sizes, size_t n,
                    Places places);

// Numbers of one field, converted to `kind` (i, u, f or b) of `width` bytes. Rows that are absent or nil are left
// as they are. The places must come from find() on the same data.
Failure numbers(const uint8_t* data, size_t total, const int32_t* info, const int64_t* starts, size_t n, char kind,
                size_t width, uint8_t* out);

constexpr int8_t array_type = 0x42;

// Arrays of one field: our extension, or the map that msgpack-numpy writes. For the rows whose dtype is `dtype`
// and whose rank is `rank`: where the values lie, and their shape. `statuses` is 0 for rows that are absent or nil,
// 1 for those that were statuses, 2 for any other value, which is left to the caller.
// A size that does not fit the values is a failure.
Failure arrays(const uint8_t* data, size_t total, const int32_t* info, const int64_t* starts, const int64_t* sizes,
               size_t n, const std::string& dtype, size_t width, size_t rank, uint8_t* statuses, int64_t* value_starts,
               int64_t* value_sizes, int64_t* shapes);

// Nested lists of numbers of one field, `rank` deep, converted as by numbers() and appended to `values`. For each row
// the size in bytes and the shape, -1 for what a list without an element does not tell; `statuses` is 0 for rows that
// are absent or nil, 1 for lists, 2 for any other value and for lists that are no array or whose numbers do not fit,
// which are left to the caller.
void lists(const uint8_t* data, size_t total, const int32_t* info, const int64_t* starts, const int64_t* sizes,
           size_t n, char kind, size_t width, size_t rank, uint8_t* statuses, int64_t* value_sizes, int64_t* shapes,
           std::vector<uint8_t>& values);

// A field of the rows to be packed. mode: i, u, f, b for numbers of `width` little-endian bytes, s for text,
// x for bytes, e for our array extension, n for a head followed by bytes (msgpack-numpy).
struct Column {
    std::string key;
    char mode = 'x';
    size_t width = 0;
    const uint8_t* data = nullptr;
    size_t total = 0;
    const int64_t* starts = nullptr;
    const int64_t* sizes = nullptr;  // -1: missing
    const uint8_t* heads = nullptr;  // head_size bytes for each row
    size_t head_size = 0;
    const uint8_t* headed = nullptr;  // rows without a head are bytes (mode x); null: all have one
};

// The sizes of the packed rows, as n + 1 offsets. Checks all that pack() relies on; a failure's offset is then the
// number of the column.
Failure measure(const std::vector<Column>& columns, size_t n, int64_t* offsets);

// Writes the rows one after the other: offsets[n] bytes as measure() found.
void pack(const std::vector<Column>& columns, size_t n, uint8_t* out);

}  // namespace batchplant::msgpack
