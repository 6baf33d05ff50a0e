#include "msgpack.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "../io/bytes.hpp"

namespace batchplant::msgpack {
namespace {

uint64_t big_endian(const uint8_t* at, size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value = value << 8 | at[i];
    return value;
}

uint64_t little_endian(const uint8_t* at, size_t bytes) {
    uint64_t value = 0;
    for (size_t i = bytes; i-- > 0;) value = value << 8 | at[i];
    return value;
}

// The number in `bytes` two's complement bytes.
int64_t signed_of(uint64_t value, size_t bytes) {
    const unsigned shift = static_cast<unsigned>(64 - 8 * bytes);
    return static_cast<int64_t>(value << shift) >> shift;
}

constexpr uint64_t longest = std::numeric_limits<uint32_t>::max();

int32_t info_of(const Token& token) {
    return static_cast<int32_t>(token.kind) | token.head << 8 |
           static_cast<int32_t>(static_cast<uint8_t>(token.type)) << 16;
}

Token token_of(int32_t info) {
    Token token;
    token.kind = static_cast<Kind>(info & 0xFF);
    token.head = static_cast<uint8_t>(info >> 8 & 0xFF);
    token.type = static_cast<int8_t>(static_cast<uint8_t>(info >> 16 & 0xFF));
    return token;
}

bool is_key(const Token& token, const uint8_t* at, const char* name, size_t length) {
    if ((token.kind != Kind::text && token.kind != Kind::binary) || token.payload != length) return false;
    return std::memcmp(at + token.head, name, length) == 0;
}

// Records are asked for in any order, so that nothing but this brings them near in time. Small values lie at
// both ends of a record, around the large ones.
void bring_near(const uint8_t* data, size_t total, int64_t start, int64_t size) {
    if (size <= 0 || !run_fits(start, size, total)) return;
    __builtin_prefetch(data + start);
    __builtin_prefetch(data + start + size - 1);
}

void set(Places places, size_t entry, const Token& token, int64_t start, int64_t size) {
    places.info[entry] = info_of(token);
    places.start[entry] = start;
    places.size[entry] = size;
}

}  // namespace

Fault read_token(const uint8_t* at, const uint8_t* end, Token& token) {
    if (at >= end) return Fault::unfinished;
    const auto room = static_cast<size_t>(end - at);
    const uint8_t first = *at;
    token = Token{};
    // `wide` bytes of length behind the first byte, and `more` bytes behind them.
    const auto sized = [&](Kind kind, size_t wide, size_t more) {
        if (room < 1 + wide + more) return Fault::unfinished;
        token.kind = kind;
        token.head = static_cast<uint8_t>(1 + wide + more);
        token.payload = big_endian(at + 1, wide);
        if (more) token.type = static_cast<int8_t>(at[1 + wide]);
        return Fault::none;
    };
    const auto number = [&](Kind kind, size_t bytes) {
        token.kind = kind;
        token.head = 1;
        token.payload = bytes;
        return Fault::none;
    };
    const auto values = [&](Kind kind, size_t wide, uint64_t each) {
        if (room < 1 + wide) return Fault::unfinished;
        token.kind = kind;
        token.head = static_cast<uint8_t>(1 + wide);
        token.values = big_endian(at + 1, wide) * each;
        return Fault::none;
    };
    const auto itself = [&](Kind kind) {
        token.kind = kind;
        token.payload = 1;
        return Fault::none;
    };
    if (first < 0x80) return itself(Kind::natural);
    if (first >= 0xE0) return itself(Kind::integer);
    if (first < 0x90 || first < 0xA0) {
        const bool map = first < 0x90;
        token.kind = map ? Kind::map : Kind::array;
        token.head = 1;
        token.values = static_cast<uint64_t>(first & 0x0F) * (map ? 2 : 1);
        return Fault::none;
    }
    if (first < 0xC0) {
        token.kind = Kind::text;
        token.head = 1;
        token.payload = first & 0x1F;
        return Fault::none;
    }
    switch (first) {
        case 0xC0: return number(Kind::nil, 0);
        case 0xC2:
        case 0xC3: return itself(Kind::boolean);
        case 0xC4: return sized(Kind::binary, 1, 0);
        case 0xC5: return sized(Kind::binary, 2, 0);
        case 0xC6: return sized(Kind::binary, 4, 0);
        case 0xC7: return sized(Kind::extension, 1, 1);
        case 0xC8: return sized(Kind::extension, 2, 1);
        case 0xC9: return sized(Kind::extension, 4, 1);
        case 0xCA: return number(Kind::real, 4);
        case 0xCB: return number(Kind::real, 8);
        case 0xCC:
        case 0xCD:
        case 0xCE:
        case 0xCF: return number(Kind::natural, size_t{1} << (first - 0xCC));
        case 0xD0:
        case 0xD1:
        case 0xD2:
        case 0xD3: return number(Kind::integer, size_t{1} << (first - 0xD0));
        case 0xD4:
        case 0xD5:
        case 0xD6:
        case 0xD7:
        case 0xD8:
            if (room < 2) return Fault::unfinished;
            token.kind = Kind::extension;
            token.head = 2;
            token.type = static_cast<int8_t>(at[1]);
            token.payload = uint64_t{1} << (first - 0xD4);
            return Fault::none;
        case 0xD9: return sized(Kind::text, 1, 0);
        case 0xDA: return sized(Kind::text, 2, 0);
        case 0xDB: return sized(Kind::text, 4, 0);
        case 0xDC: return values(Kind::array, 2, 1);
        case 0xDD: return values(Kind::array, 4, 1);
        case 0xDE: return values(Kind::map, 2, 2);
        case 0xDF: return values(Kind::map, 4, 2);
        default: return Fault::invalid;
    }
}

const uint8_t* skip_value(const uint8_t* at, const uint8_t* end) {
    Token token;
    for (uint64_t todo = 1; todo > 0; --todo) {
        if (read_token(at, end, token) != Fault::none) return nullptr;
        at += token.head;
        if (token.payload > static_cast<uint64_t>(end - at)) return nullptr;
        at += token.payload;
        todo += token.values;
        // Every value has at least one byte.
        if (todo - 1 > static_cast<uint64_t>(end - at)) return nullptr;
    }
    return at;
}

size_t Scanner::feed(const uint8_t* piece, size_t size, int64_t base, uint64_t left, uint64_t most) {
    const uint8_t* const end = piece + size;
    const uint8_t* at = piece;
    Token token;
    for (;;) {
        if (skip > 0) {
            const uint64_t step = std::min<uint64_t>(skip, static_cast<uint64_t>(end - at));
            at += step;
            skip -= step;
            if (skip > 0) break;
        }
        const bool top = todo == 0;
        if (at == end || (top && starts.size() >= most)) break;
        const Fault token_fault = read_token(at, end, token);
        const auto used = static_cast<uint64_t>(at - piece);
        if (token_fault == Fault::unfinished && left > size) break;
        if (token_fault != Fault::none) {
            fault = token_fault;
            break;
        }
        const uint64_t rest = left - used - token.head;
        const uint64_t inside = (top ? 0 : todo - 1) + token.values;
        if (token.payload > rest || inside > rest) {
            fault = Fault::unfinished;
            break;
        }
        if (top) starts.push_back(base + static_cast<int64_t>(used));
        todo = inside;
        at += token.head;
        skip = token.payload;
    }
    return static_cast<size_t>(at - piece);
}

Failure find(const uint8_t* data, size_t total, const int64_t* starts, const int64_t* sizes, size_t n,
             const std::vector<std::string>& keys, Places places) {
    constexpr size_t ahead = 8;
    const size_t count = keys.size();
    for (size_t row = 0; row < n; ++row) {
        const auto failed = [&](const uint8_t* at, const char* reason) {
            return Failure{static_cast<int64_t>(row), at - data, reason};
        };
        if (row + ahead < n) bring_near(data, total, starts[row + ahead], sizes[row + ahead]);
        for (size_t key = 0; key < count; ++key) set(places, key * n + row, Token{}, 0, 0);
        if (!run_fits(starts[row], sizes[row], total)) {
            return Failure{static_cast<int64_t>(row), starts[row], "the record does not lie in the file"};
        }
        const uint8_t* at = data + starts[row];
        const uint8_t* const end = at + sizes[row];
        Token token;
        if (read_token(at, end, token) != Fault::none) return failed(at, "the record is cut short");
        if (token.kind != Kind::map) return failed(at, "the record is not a MessagePack map");
        at += token.head;
        // Records are mostly written with their keys in the order that is asked for.
        size_t likely = 0;
        for (uint64_t left = token.values / 2; left > 0; --left) {
            if (read_token(at, end, token) != Fault::none) return failed(at, "the record is cut short");
            const uint8_t* const key_at = at;
            at = skip_value(at, end);
            if (at == nullptr) return failed(key_at, "the record is cut short");
            size_t key_index = count;
            if (token.kind == Kind::text || token.kind == Kind::binary) {
                for (size_t tried = 0; tried < count; ++tried) {
                    const size_t key = likely + tried < count ? likely + tried : likely + tried - count;
                    if (is_key(token, key_at, keys[key].data(), keys[key].size())) {
                        key_index = key;
                        break;
                    }
                }
            }
            const uint8_t* const value = at;
            if (read_token(value, end, token) != Fault::none) return failed(value, "the record is cut short");
            at = skip_value(value, end);
            if (at == nullptr) return failed(value, "the record is cut short");
            if (key_index == count) continue;
            set(places, key_index * n + row, token, value - data, at - value);
            likely = key_index + 1 < count ? key_index + 1 : 0;
        }
        if (at != end) return failed(at, "there are bytes behind the record's map");
    }
    return {};
}

Failure find_values(const uint8_t* data, size_t total, const int64_t* starts, const int64_t* sizes, size_t n,
                    Places places) {
    for (size_t row = 0; row < n; ++row) {
        const Failure cut{static_cast<int64_t>(row), starts[row], "the value is cut short"};
        if (!run_fits(starts[row], sizes[row], total)) return cut;
        const uint8_t* const at = data + starts[row];
        const uint8_t* const end = at + sizes[row];
        Token token;
        if (read_token(at, end, token) != Fault::none || skip_value(at, end) != end) return cut;
        set(places, row, token, starts[row], sizes[row]);
    }
    return {};
}

namespace {

template <typename T>
const char* whole_number(const Token& token, const uint8_t* at, size_t bytes, T& out) {
    constexpr const char* wide = "the number is out of range";
    const uint64_t bits = big_endian(at, bytes);
    if (token.kind == Kind::natural) {
        if (bits > static_cast<uint64_t>(std::numeric_limits<T>::max())) return wide;
        out = static_cast<T>(bits);
        return nullptr;
    }
    if (token.kind != Kind::integer) return "a whole number is needed here";
    const int64_t value = signed_of(bits, bytes);
    if constexpr (std::is_unsigned_v<T>) {
        if (value < 0 || static_cast<uint64_t>(value) > std::numeric_limits<T>::max()) return wide;
    } else {
        if (value < std::numeric_limits<T>::min() || value > std::numeric_limits<T>::max()) return wide;
    }
    out = static_cast<T>(value);
    return nullptr;
}

template <typename T>
const char* real_number(const Token& token, const uint8_t* at, size_t bytes, T& out) {
    if (token.kind == Kind::real) {
        if (bytes == 4) {
            out = static_cast<T>(std::bit_cast<float>(static_cast<uint32_t>(big_endian(at, 4))));
            return nullptr;
        }
        const double value = std::bit_cast<double>(big_endian(at, 8));
        out = static_cast<T>(value);
        return std::isinf(out) && !std::isinf(value) ? "the number is out of range" : nullptr;
    }
    // Beyond 2^53 (float: 2^24) whole numbers have no exact place among the real ones.
    constexpr int64_t most = int64_t{1} << std::numeric_limits<T>::digits;
    int64_t value = 0;
    if (token.kind != Kind::integer && token.kind != Kind::natural) return "a number is needed here";
    if (whole_number(token, at, bytes, value) != nullptr || value > most || value < -most) {
        return "the whole number is too large to be a real one exactly";
    }
    out = static_cast<T>(value);
    return nullptr;
}

template <typename T, typename Convert>
Failure numbers_as(const uint8_t* data, size_t total, const int32_t* info, const int64_t* starts, size_t n,
                   uint8_t* out, Convert&& convert) {
    for (size_t row = 0; row < n; ++row) {
        Token token = token_of(info[row]);
        if (token.kind == Kind::absent || token.kind == Kind::nil) continue;
        const auto failed = [&](const char* reason) { return Failure{static_cast<int64_t>(row), starts[row], reason}; };
        if (!run_fits(starts[row], 1, total)) return failed("the number does not lie in the data");
        const uint8_t* at = data + starts[row];
        if (read_token(at, data + total, token) != Fault::none ||
            !run_fits(starts[row] + token.head, static_cast<int64_t>(token.payload), total)) {
            return failed("the number does not lie in the data");
        }
        T value{};
        const char* const reason = convert(token, at + token.head, static_cast<size_t>(token.payload), value);
        if (reason != nullptr) return failed(reason);
        std::memcpy(out + row * sizeof value, &value, sizeof value);
    }
    return {};
}

}  // namespace

namespace {

const char* flag(const Token& token, const uint8_t* at, size_t, uint8_t& value) {
    if (token.kind != Kind::boolean) return "true or false is needed here";
    value = *at & 1;
    return nullptr;
}

// Calls work(T{}, convert) with the type that a kind and a width mean, and how its numbers are read.
template <typename Work>
auto with_type(char kind, size_t width, Work&& work) {
    if (kind == 'b') return work(uint8_t{}, flag);
    if (kind == 'f') return width == 4 ? work(float{}, real_number<float>) : work(double{}, real_number<double>);
    if (kind == 'i') {
        switch (width) {
            case 1: return work(int8_t{}, whole_number<int8_t>);
            case 2: return work(int16_t{}, whole_number<int16_t>);
            case 4: return work(int32_t{}, whole_number<int32_t>);
            default: return work(int64_t{}, whole_number<int64_t>);
        }
    }
    switch (width) {
        case 1: return work(uint8_t{}, whole_number<uint8_t>);
        case 2: return work(uint16_t{}, whole_number<uint16_t>);
        case 4: return work(uint32_t{}, whole_number<uint32_t>);
        default: return work(uint64_t{}, whole_number<uint64_t>);
    }
}

}  // namespace

Failure numbers(const uint8_t* data, size_t total, const int32_t* info, const int64_t* starts, size_t n, char kind,
                size_t width, uint8_t* out) {
    return with_type(kind, width, [&]<typename T>(T, auto convert) {
        return numbers_as<T>(data, total, info, starts, n, out, convert);
    });
}

namespace {

// The numbers of a list that is `rank` lists deep; null where it is no array of such numbers. Lists of one depth
// must be equally long: -1 in the shape means that none was seen yet.
template <typename T, typename Convert>
const uint8_t* read_list(const uint8_t* at, const uint8_t* end, size_t rank, int64_t* shape,
                         std::vector<uint8_t>& values, Convert convert) {
    Token token;
    if (read_token(at, end, token) != Fault::none) return nullptr;
    at += token.head;
    if (rank == 0) {
        T value{};
        if (token.payload > static_cast<uint64_t>(end - at) || token.kind > Kind::real ||
            convert(token, at, static_cast<size_t>(token.payload), value) != nullptr) {
            return nullptr;
        }
        const auto* const bytes = reinterpret_cast<const uint8_t*>(&value);
        values.insert(values.end(), bytes, bytes + sizeof value);
        return at + token.payload;
    }
    if (token.kind != Kind::array) return nullptr;
    const auto count = static_cast<int64_t>(token.values);
    if (*shape >= 0 && *shape != count) return nullptr;
    *shape = count;
    for (int64_t i = 0; i < count; ++i) {
        at = read_list<T>(at, end, rank - 1, shape + 1, values, convert);
        if (at == nullptr) return nullptr;
    }
    return at;
}

}  // namespace

void lists(const uint8_t* data, size_t total, const int32_t* info, const int64_t* starts, const int64_t* sizes,
           size_t n, char kind, size_t width, size_t rank, uint8_t* statuses, int64_t* value_sizes, int64_t* shapes,
           std::vector<uint8_t>& values) {
    with_type(kind, width, [&]<typename T>(T, auto convert) {
        for (size_t row = 0; row < n; ++row) {
            const Kind is = token_of(info[row]).kind;
            int64_t* const shape = shapes + row * rank;
            const size_t before = values.size();
            statuses[row] = is == Kind::absent || is == Kind::nil ? 0 : 2;
            std::fill(shape, shape + rank, -1);
            if (is == Kind::array && run_fits(starts[row], sizes[row], total)) {
                const uint8_t* const at = data + starts[row];
                const uint8_t* const end = at + sizes[row];
                if (read_list<T>(at, end, rank, shape, values, convert) == end) statuses[row] = 1;
            }
            if (statuses[row] != 1) values.resize(before);
            value_sizes[row] = static_cast<int64_t>(values.size() - before);
        }
    });
}

namespace {

// An array of a row: the text of its dtype, its shape, its values.
struct NumpyArray {
    const uint8_t* dtype = nullptr;
    size_t dtype_size = 0;
    const uint8_t* shape = nullptr;
    size_t rank = 0;
    bool coded = false;  // the sizes are MessagePack numbers, else 8 bytes each
    const uint8_t* values = nullptr;
    uint64_t size = 0;
};

bool read_extension(const uint8_t* at, const uint8_t* end, NumpyArray& array) {
    if (at >= end || *at > end - at - 1) return false;
    array.dtype_size = *at++;
    array.dtype = at;
    at += array.dtype_size;
    if (at >= end) return false;
    array.rank = *at++;
    if (array.rank * 8 > static_cast<size_t>(end - at)) return false;
    array.shape = at;
    array.values = at + array.rank * 8;
    array.size = static_cast<uint64_t>(end - array.values);
    return true;
}

// The map of msgpack-numpy: nd, type, kind, shape and data, as bytes or as text.
bool read_numpy_map(const uint8_t* at, const uint8_t* end, NumpyArray& array) {
    Token map, key, value;
    if (read_token(at, end, map) != Fault::none || map.kind != Kind::map) return false;
    at += map.head;
    bool is_array = false;
    for (uint64_t left = map.values / 2; left > 0; --left) {
        if (read_token(at, end, key) != Fault::none) return false;
        const uint8_t* const name = at;
        at = skip_value(at, end);
        if (at == nullptr || read_token(at, end, value) != Fault::none) return false;
        const uint8_t* const payload = at + value.head;
        const bool bytes = value.kind == Kind::text || value.kind == Kind::binary;
        if (is_key(key, name, "nd", 2)) {
            is_array = value.kind == Kind::boolean && (*at & 1);
        } else if (is_key(key, name, "type", 4) && bytes) {
            array.dtype = payload;
            array.dtype_size = value.payload;
        } else if (is_key(key, name, "shape", 5) && value.kind == Kind::array) {
            array.shape = payload;
            array.rank = value.values;
            array.coded = true;
        } else if (is_key(key, name, "data", 4) && bytes) {
            array.values = payload;
            array.size = value.payload;
        }
        at = skip_value(at, end);
        if (at == nullptr) return false;
    }
    return is_array && array.dtype != nullptr && array.shape != nullptr && array.values != nullptr;
}

bool read_shape(const NumpyArray& array, const uint8_t* end, int64_t* sizes) {
    const uint8_t* at = array.shape;
    for (size_t axis = 0; axis < array.rank; ++axis) {
        uint64_t size = 0;
        if (array.coded) {
            Token token;
            if (read_token(at, end, token) != Fault::none) return false;
            at += token.head;
            if (token.payload > static_cast<uint64_t>(end - at)) return false;
            int64_t value = 0;
            if (whole_number(token, at, static_cast<size_t>(token.payload), value) != nullptr || value < 0)
                return false;
            at += token.payload;
            size = static_cast<uint64_t>(value);
        } else {
            size = little_endian(at, 8);
            at += 8;
        }
        if (size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
        sizes[axis] = static_cast<int64_t>(size);
    }
    return true;
}

// True if the sizes multiply to exactly this many bytes.
bool shape_is(const int64_t* sizes, size_t rank, size_t width, uint64_t bytes) {
    for (size_t axis = 0; axis < rank; ++axis) {
        if (sizes[axis] == 0) return bytes == 0;
    }
    uint64_t product = width;
    for (size_t axis = 0; axis < rank; ++axis) {
        if (__builtin_mul_overflow(product, static_cast<uint64_t>(sizes[axis]), &product)) return false;
    }
    return product == bytes;
}

}  // namespace

Failure arrays(const uint8_t* data, size_t total, const int32_t* info, const int64_t* starts, const int64_t* sizes,
               size_t n, const std::string& dtype, size_t width, size_t rank, uint8_t* statuses, int64_t* value_starts,
               int64_t* value_sizes, int64_t* shapes) {
    for (size_t row = 0; row < n; ++row) {
        const Token token = token_of(info[row]);
        statuses[row] = token.kind == Kind::absent || token.kind == Kind::nil ? 0 : 2;
        value_starts[row] = value_sizes[row] = 0;
        std::memset(shapes + row * rank, 0, rank * sizeof *shapes);
        if (statuses[row] == 0) continue;
        const auto failed = [&](const char* reason) { return Failure{static_cast<int64_t>(row), starts[row], reason}; };
        if (!run_fits(starts[row], sizes[row], total) || token.head > sizes[row]) {
            return failed("the array does not lie in the data");
        }
        const uint8_t* const at = data + starts[row];
        const uint8_t* const end = at + sizes[row];
        NumpyArray array;
        if (token.kind == Kind::extension && token.type == array_type) {
            if (!read_extension(at + token.head, end, array)) return failed("the array's head is cut short");
        } else if (token.kind != Kind::map || !read_numpy_map(at, end, array)) {
            continue;
        }
        if (array.rank != rank || array.dtype_size != dtype.size() ||
            std::memcmp(array.dtype, dtype.data(), dtype.size()) != 0) {
            continue;
        }
        if (!read_shape(array, end, shapes + row * rank) || !shape_is(shapes + row * rank, rank, width, array.size)) {
            return failed("the shape of the array does not match its bytes");
        }
        statuses[row] = 1;
        value_starts[row] = array.values - data;
        value_sizes[row] = static_cast<int64_t>(array.size);
    }
    return {};
}

namespace {

// Destination of packed bytes. Measuring only counts them.
struct Counter {
    uint64_t size = 0;
    void byte(uint8_t) { ++size; }
    void big(uint64_t, size_t bytes) { size += bytes; }
    void copy(const uint8_t*, size_t bytes) { size += bytes; }
};

struct Out {
    uint8_t* at;
    void byte(uint8_t value) { *at++ = value; }
    void big(uint64_t value, size_t bytes) {
        for (size_t i = bytes; i-- > 0;) *at++ = static_cast<uint8_t>(value >> 8 * i);
    }
    void copy(const uint8_t* from, size_t bytes) {
        if (bytes > 0) std::memcpy(at, from, bytes);
        at += bytes;
    }
};

template <typename Sink>
void put_length(Sink& sink, uint64_t size, uint8_t narrow) {
    const unsigned form = size <= 0xFF ? 0 : size <= 0xFFFF ? 1 : 2;
    sink.byte(static_cast<uint8_t>(narrow + form));
    sink.big(size, size_t{1} << form);
}

template <typename Sink>
void put_text_head(Sink& sink, uint64_t size) {
    if (size < 32) return sink.byte(static_cast<uint8_t>(0xA0 | size));
    put_length(sink, size, 0xD9);
}

template <typename Sink>
void put_extension_head(Sink& sink, uint64_t size, int8_t type) {
    if (std::has_single_bit(size) && size <= 16) {
        sink.byte(static_cast<uint8_t>(0xD4 + std::countr_zero(size)));
    } else {
        put_length(sink, size, 0xC7);
    }
    sink.byte(static_cast<uint8_t>(type));
}

template <typename Sink>
void put_map_head(Sink& sink, size_t pairs) {
    if (pairs < 16) return sink.byte(static_cast<uint8_t>(0x80 | pairs));
    const bool narrow = pairs <= 0xFFFF;
    sink.byte(narrow ? 0xDE : 0xDF);
    sink.big(pairs, narrow ? 2 : 4);
}

template <typename Sink>
void put_natural(Sink& sink, uint64_t value) {
    if (value < 0x80) return sink.byte(static_cast<uint8_t>(value));
    const unsigned form = value <= 0xFF ? 0 : value <= 0xFFFF ? 1 : value <= 0xFFFFFFFF ? 2 : 3;
    sink.byte(static_cast<uint8_t>(0xCC + form));
    sink.big(value, size_t{1} << form);
}

template <typename Sink>
void put_integer(Sink& sink, int64_t value) {
    if (value >= 0) return put_natural(sink, static_cast<uint64_t>(value));
    if (value >= -32) return sink.byte(static_cast<uint8_t>(value));
    const unsigned form = value >= INT8_MIN ? 0 : value >= INT16_MIN ? 1 : value >= INT32_MIN ? 2 : 3;
    sink.byte(static_cast<uint8_t>(0xD0 + form));
    sink.big(static_cast<uint64_t>(value), size_t{1} << form);
}

template <typename Sink>
void put_cell(Sink& sink, const Column& column, size_t row) {
    const int64_t size = column.sizes[row];
    if (size < 0) return sink.byte(0xC0);
    const uint8_t* const at = column.data + column.starts[row];
    const auto bytes = static_cast<size_t>(size);
    const auto put_bytes = [&] {
        put_length(sink, bytes, 0xC4);
        sink.copy(at, bytes);
    };
    switch (column.mode) {
        case 'i': return put_integer(sink, signed_of(little_endian(at, column.width), column.width));
        case 'u': return put_natural(sink, little_endian(at, column.width));
        case 'b': return sink.byte(*at ? 0xC3 : 0xC2);
        case 'f':
            sink.byte(column.width == 4 ? 0xCA : 0xCB);
            return sink.big(little_endian(at, column.width), column.width);
        case 's': put_text_head(sink, bytes); return sink.copy(at, bytes);
        case 'x': return put_bytes();
        default: break;
    }
    if (column.headed != nullptr && !column.headed[row]) return put_bytes();
    const uint8_t* const head = column.heads + row * column.head_size;
    if (column.mode == 'e') {
        put_extension_head(sink, column.head_size + bytes, array_type);
        sink.copy(head, column.head_size);
        return sink.copy(at, bytes);
    }
    sink.copy(head, column.head_size);
    put_bytes();
}

template <typename Sink>
void put_key(Sink& sink, const std::string& key) {
    put_text_head(sink, key.size());
    sink.copy(reinterpret_cast<const uint8_t*>(key.data()), key.size());
}

}  // namespace

Failure measure(const std::vector<Column>& columns, size_t n, int64_t* offsets) {
    Counter fixed;
    put_map_head(fixed, columns.size());
    for (const Column& column : columns) put_key(fixed, column.key);
    offsets[0] = 0;
    for (size_t row = 0; row < n; ++row) {
        Counter sink = fixed;
        for (const Column& column : columns) {
            const auto failed = [&](const char* reason) {
                return Failure{static_cast<int64_t>(row), static_cast<int64_t>(&column - columns.data()), reason};
            };
            const int64_t size = column.sizes[row];
            if (size >= 0) {
                if (!run_fits(column.starts[row], size, column.total)) return failed("the cell is out of bounds");
                if (static_cast<uint64_t>(size) + column.head_size > longest) {
                    return failed("MessagePack holds no value of 4 GiB or more");
                }
                if (column.width > 0 && static_cast<size_t>(size) != column.width) {
                    return failed("the size of the cell does not match its dtype");
                }
            }
            put_cell(sink, column, row);
        }
        offsets[row + 1] = offsets[row] + static_cast<int64_t>(sink.size);
    }
    return {};
}

void pack(const std::vector<Column>& columns, size_t n, uint8_t* out) {
    Out sink{out};
    for (size_t row = 0; row < n; ++row) {
        put_map_head(sink, columns.size());
        for (const Column& column : columns) {
            put_key(sink, column.key);
            put_cell(sink, column, row);
        }
    }
}

}  // namespace batchplant::msgpack
