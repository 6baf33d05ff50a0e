#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// Shared by CSV and JSON: numbers, base64 and UTF-8 as text, and rows put together from columns.

namespace batchplant::text {

// Kind b, i, u or f as NumPy names it, and the size in bytes. f2, f4 and f8 are known.
struct Dtype {
    char kind = 'i';
    uint8_t size = 8;
};

bool is_known(Dtype dtype);

// Everything in [at, end) is one number (or true, false, 0, 1 for kind b), blanks around it left out. False where
// it is none, or out of the dtype's range.
bool parse_number(const uint8_t* at, const uint8_t* end, Dtype dtype, uint8_t* out);

// Types that a piece of text could have; the numbers are part of the Python API: append, never renumber.
enum Class : uint32_t {
    whole = 1,     // fits int64
    natural = 2,   // fits uint64 only
    large = 4,     // beyond 2**53, so no float64 holds it surely; comes with one of the two above
    negative = 8,  // comes with `whole`
    real = 16,
    word = 32,  // nan, inf
    boolean = 64,
    other = 128,  // anything else, also whole numbers beyond 64 bits and those with leading zeros
    missing = 256,
    array = 512,  // only JSON has these
    object = 1024,
    quoted = 2048,  // a JSON string
};

uint32_t classify(const uint8_t* at, const uint8_t* end);

// Offset of the first bytes that are not UTF-8; `size` if all are.
size_t valid_utf8(const uint8_t* data, size_t size);

// The line (from 1) and the character in it (from 1).
struct Place {
    int64_t line = 1;
    int64_t column = 1;
};

// The place of `at`, where `start` is that of the data's first byte.
Place place_of(const uint8_t* data, size_t at, Place start);

// A row that cannot be read. `extra`: how many fields it has, for reason `ragged`.
enum class Reason : uint8_t {
    none = 0,
    utf8 = 1,
    ragged = 2,
    open_quote = 3,
    behind_quote = 4,
    syntax = 5,
    ends = 6,
    several = 7,
    control = 8,
    escape = 9,
    deep = 10,
};
struct BadRow {
    int64_t offset;
    Place place;
    Reason reason;
    int64_t extra;
};

// An error, its row (-1: no error), and its byte in the data.
struct Failure {
    int64_t row = -1;
    int64_t offset = 0;
    const char* reason = "";
};

// Values of runs [start, start + size) of data; a size of -1 is a missing one, whose bytes are zeros.
Failure numbers(const uint8_t* data, const int64_t* starts, const int64_t* sizes, size_t n, Dtype dtype, uint8_t* out);

// The bytes of base64 texts, one after another. `sizes` of missing ones stay -1 and have no bytes.
Failure from_base64(const uint8_t* data, const int64_t* starts, const int64_t* sizes, size_t n,
                    std::vector<uint8_t>& out, int64_t* offsets);

// Format in which a column's cells are written.
enum class Mode : uint8_t { number, text, json, base64, array };

struct Part {
    std::string key;  // what stands before the value: nothing, or a JSON key with its colon
    Mode mode = Mode::text;
    Dtype dtype;
    const uint8_t* data = nullptr;
    const int64_t* starts = nullptr;
    const int64_t* sizes = nullptr;  // -1: missing
    std::vector<int64_t> inner;      // sizes of the axes of an array behind its first
    bool omit = false;               // JSON: a missing value has no key either, and is no null
};

struct Style {
    bool json = true;
    char delimiter = ',';
    std::string before;  // each row
    std::string after;
};

void pack(size_t rows, const std::vector<Part>& parts, const Style& style, std::vector<uint8_t>& out, int64_t* offsets);

}  // namespace batchplant::text
