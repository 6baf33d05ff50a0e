#include "json.hpp"

#include <algorithm>
#include <bitset>
#include <cstring>
#include <string_view>

namespace batchplant::json {
namespace {

using text::Reason;

bool is_space(uint8_t byte) { return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t'; }

bool is_digit(uint8_t byte) { return byte >= '0' && byte <= '9'; }

const uint8_t* skip_space(const uint8_t* at, const uint8_t* end) {
    while (at < end && is_space(*at)) ++at;
    return at;
}

// The value of four hexadecimal digits, or -1.
int hex4(const uint8_t* at) {
    int value = 0;
    for (int i = 0; i < 4; ++i) {
        const uint8_t byte = at[i];
        const int digit = is_digit(byte)               ? byte - '0'
                          : byte >= 'a' && byte <= 'f' ? byte - 'a' + 10
                          : byte >= 'A' && byte <= 'F' ? byte - 'A' + 10
                                                       : -1;
        if (digit < 0) return -1;
        value = value << 4 | digit;
    }
    return value;
}

// `at` is behind the opening quote; the end is behind the closing one.
End skip_string(const uint8_t* at, const uint8_t* end, bool& escaped) {
    escaped = false;
    while (true) {
        while (at < end && *at >= 0x20 && *at != '"' && *at != '\\') ++at;
        if (at == end) return {at, Reason::ends};
        if (*at == '"') return {at + 1, Reason::none};
        if (*at < 0x20) return {at, Reason::control};
        escaped = true;
        if (end - at < 2) return {end, Reason::ends};
        if (at[1] != 'u') {
            if (std::memchr("\"\\/bfnrt", at[1], 8) == nullptr) return {at, Reason::escape};
            at += 2;
            continue;
        }
        if (end - at < 6) return {end, Reason::ends};
        // Half of a pair without the other is no character, but JSON has it.
        if (hex4(at + 2) < 0) return {at, Reason::escape};
        at += 6;
    }
}

End skip_word(const uint8_t* at, const uint8_t* end, std::string_view word) {
    for (const char letter : word) {
        if (at == end) return {at, Reason::ends};
        if (*at != static_cast<uint8_t>(letter)) return {at, Reason::syntax};
        ++at;
    }
    return {at, Reason::none};
}

End skip_number(const uint8_t* at, const uint8_t* end) {
    if (*at == '-') ++at;
    if (at == end) return {at, Reason::ends};
    if (*at == 'I') return skip_word(at, end, "Infinity");
    if (!is_digit(*at)) return {at, Reason::syntax};
    if (*at == '0') {
        ++at;
        if (at < end && is_digit(*at)) return {at, Reason::syntax};
    }
    while (at < end && is_digit(*at)) ++at;
    if (at < end && *at == '.') {
        ++at;
        if (at == end) return {at, Reason::ends};
        if (!is_digit(*at)) return {at, Reason::syntax};
        while (at < end && is_digit(*at)) ++at;
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        ++at;
        if (at < end && (*at == '+' || *at == '-')) ++at;
        if (at == end) return {at, Reason::ends};
        if (!is_digit(*at)) return {at, Reason::syntax};
        while (at < end && is_digit(*at)) ++at;
    }
    return {at, Reason::none};
}

// A value without others in it.
End skip_plain(const uint8_t* at, const uint8_t* end) {
    bool escaped;
    switch (*at) {
        case '"': return skip_string(at + 1, end, escaped);
        case 't': return skip_word(at, end, "true");
        case 'f': return skip_word(at, end, "false");
        case 'n': return skip_word(at, end, "null");
        case 'N': return skip_word(at, end, "NaN");
        case 'I': return skip_word(at, end, "Infinity");
        default: return skip_number(at, end);
    }
}

}  // namespace

End skip_value(const uint8_t* at, const uint8_t* end) {
    std::bitset<deepest> objects;
    size_t depth = 0;
    bool key = false;    // a key comes next, or the end of an object that has none
    bool first = false;  // nothing stands in this object or array yet
    while (true) {
        at = skip_space(at, end);
        if (at == end) return {at, Reason::ends};
        const bool closes = depth > 0 && first && *at == (objects[depth - 1] ? '}' : ']');
        if (!closes) {
            if (key) {
                bool escaped;
                if (*at != '"') return {at, Reason::syntax};
                const End name = skip_string(at + 1, end, escaped);
                if (name.fault != Reason::none) return name;
                at = skip_space(name.at, end);
                if (at == end) return {at, Reason::ends};
                if (*at != ':') return {at, Reason::syntax};
                at = skip_space(at + 1, end);
                if (at == end) return {at, Reason::ends};
            }
            first = false;
            if (*at == '{' || *at == '[') {
                if (depth == deepest) return {at, Reason::deep};
                objects[depth++] = key = *at == '{';
                first = true;
                ++at;
                continue;
            }
            const End plain = skip_plain(at, end);
            if (plain.fault != Reason::none) return plain;
            at = plain.at;
        }
        // Behind a value, or before a bracket that closes an empty list.
        while (depth > 0) {
            at = skip_space(at, end);
            if (at == end) return {at, Reason::ends};
            const bool object = objects[depth - 1];
            if (*at == ',' && !first) {
                key = object;
                ++at;
                break;
            }
            if (*at != (object ? '}' : ']')) return {at, Reason::syntax};
            ++at;
            --depth;
            first = false;
        }
        if (depth == 0) return {at, Reason::none};
    }
}

namespace {

Kind kind_of(const uint8_t* at, bool escaped) {
    switch (*at) {
        case '"': return escaped ? Kind::escaped : Kind::string;
        case 't': return Kind::yes;
        case 'f': return Kind::no;
        case 'n': return Kind::null;
        case '[': return Kind::array;
        case '{': return Kind::object;
        default: return Kind::number;
    }
}

bool has_escape(const uint8_t* at, const uint8_t* end) {
    return std::memchr(at, '\\', static_cast<size_t>(end - at)) != nullptr;
}

// Calls take(key, key size, escaped, value, its end) for every key of the object at `at`; checks as it goes.
template <typename Take>
End walk_object(const uint8_t* at, const uint8_t* end, Take&& take) {
    at = skip_space(at + 1, end);
    if (at < end && *at == '}') return {at + 1, Reason::none};
    while (true) {
        at = skip_space(at, end);
        if (at == end) return {at, Reason::ends};
        if (*at != '"') return {at, Reason::syntax};
        const uint8_t* const key = at + 1;
        bool escaped;
        const End name = skip_string(key, end, escaped);
        if (name.fault != Reason::none) return name;
        at = skip_space(name.at, end);
        if (at == end) return {at, Reason::ends};
        if (*at != ':') return {at, Reason::syntax};
        const uint8_t* const value = skip_space(at + 1, end);
        const bool plain = value < end && *value != '{' && *value != '[';
        const End behind = plain ? skip_plain(value, end) : skip_value(value, end);
        if (behind.fault != Reason::none) return behind;
        take(key, static_cast<size_t>(name.at - 1 - key), escaped, value, behind.at);
        at = skip_space(behind.at, end);
        if (at == end) return {at, Reason::ends};
        if (*at == '}') return {at + 1, Reason::none};
        if (*at != ',') return {at, Reason::syntax};
        ++at;
    }
}

std::string unescaped(const uint8_t* at, size_t size) {
    std::string out(size, '\0');
    uint8_t* const begin = reinterpret_cast<uint8_t*>(out.data());
    out.resize(static_cast<size_t>(unescape(at, size, begin) - begin));
    return out;
}

uint32_t class_of_plain(const uint8_t* at, const uint8_t* end) {
    switch (*at) {
        case '"': return text::quoted;
        case 'n': return text::missing;
        default: return text::classify(at, end);
    }
}

// The shape of a list of numbers that is checked JSON; null where it is none of one shape.
const uint8_t* shape_of(const uint8_t* at, const uint8_t* end, size_t axis, Key& found) {
    if (axis == most_axes) return nullptr;
    int64_t count = 0;
    at = skip_space(at + 1, end);
    while (*at != ']') {
        if (*at == '[') {
            if (found.rank == axis + 1) return nullptr;
            at = shape_of(at, end, axis + 1, found);
            if (at == nullptr) return nullptr;
        } else {
            if (*at == '{' || *at == '"' || *at == 'n') return nullptr;
            if (found.rank == 0) found.rank = static_cast<uint32_t>(axis + 1);
            if (found.rank != axis + 1) return nullptr;
            const uint8_t* const behind = skip_plain(at, end).at;
            found.elements |= class_of_plain(at, behind);
            at = behind;
        }
        ++count;
        at = skip_space(at, end);
        if (*at == ',') at = skip_space(at + 1, end);
    }
    if (count == 0 && axis > 0) return nullptr;
    if (found.dims[axis] < 0) found.dims[axis] = count;
    return found.dims[axis] == count ? at + 1 : nullptr;
}

void learn_array(const uint8_t* at, const uint8_t* end, Key& key) {
    if (key.irregular) return;
    if (*skip_space(at + 1, end) == ']') {
        key.empty = true;
        return;
    }
    Key found;
    found.dims.fill(-1);
    if (shape_of(at, end, 0, found) == nullptr || (key.rank != 0 && key.rank != found.rank)) {
        key.irregular = true;
        return;
    }
    key.elements |= found.elements;
    if (key.rank == 0) {
        key.rank = found.rank;
        key.dims = found.dims;
        return;
    }
    if (key.dims[0] != found.dims[0]) key.dims[0] = -1;
    key.irregular = !std::equal(key.dims.begin() + 1, key.dims.end(), found.dims.begin() + 1);
}

void learn_value(const uint8_t* at, const uint8_t* end, Key& key) {
    if (*at == '[') {
        key.classes |= text::array;
        learn_array(at, end, key);
    } else if (*at == '{') {
        key.classes |= text::object;
    } else {
        key.classes |= class_of_plain(at, end);
    }
}

}  // namespace

Key* Scanner::key_of(const uint8_t* at, size_t size, bool escaped, size_t hint) {
    // Records mostly have their keys in one order.
    if (!escaped && hint < keys.size() && keys[hint].name.size() == size &&
        std::memcmp(keys[hint].name.data(), at, size) == 0) {
        return &keys[hint];
    }
    const std::string name = escaped ? unescaped(at, size) : std::string(reinterpret_cast<const char*>(at), size);
    const auto known = places_.find(name);
    if (known != places_.end()) return &keys[known->second];
    if (keys.size() == most_keys) {
        too_many = true;
        return nullptr;
    }
    places_.emplace(name, keys.size());
    keys.emplace_back();
    keys.back().name = name;
    return &keys.back();
}

void Scanner::learn(const uint8_t* at, const uint8_t* end) {
    const auto number = static_cast<int64_t>(starts.size());
    if (*at != '{') return learn_value(at, end, bare);
    ++objects;
    if (too_many) return;
    size_t hint = 0;
    walk_object(at, end,
                [&](const uint8_t* name, size_t size, bool escaped, const uint8_t* value, const uint8_t* behind) {
                    Key* const key = key_of(name, size, escaped, hint);
                    if (key == nullptr) return;
                    hint = static_cast<size_t>(key - keys.data()) + 1;
                    key->records += key->last != number;
                    key->last = number;
                    learn_value(value, behind, *key);
                });
}

// A fault at `at`, in a record that begins at `from`, the place that is counted.
void Scanner::refuse(const uint8_t* piece, size_t from, size_t at, int64_t base, Reason reason) {
    bad.push_back({base + static_cast<int64_t>(at), text::place_of(piece + from, at - from, place), reason, 0});
}

// The checked value in [begin, end) is a record, unless its text is no UTF-8.
bool Scanner::take(const uint8_t* piece, size_t from, size_t begin, size_t end, int64_t base) {
    const size_t valid = text::valid_utf8(piece + begin, end - begin);
    if (valid < end - begin) {
        refuse(piece, from, begin + valid, base, Reason::utf8);
        return false;
    }
    learn(piece + begin, piece + end);
    starts.push_back(base + static_cast<int64_t>(begin));
    return true;
}

size_t Scanner::feed(const uint8_t* piece, size_t size, int64_t base, bool final) {
    switch (layout) {
        case Layout::lines: return feed_lines(piece, size, base, final);
        case Layout::stream: return feed_values(piece, size, base, final);
        default: return feed_array(piece, size, base, final);
    }
}

size_t Scanner::feed_lines(const uint8_t* piece, size_t size, int64_t base, bool final) {
    size_t at = 0;
    while (at < size) {
        const auto* const newline = static_cast<const uint8_t*>(std::memchr(piece + at, '\n', size - at));
        if (newline == nullptr && !final) break;
        const size_t stop = newline == nullptr ? size : static_cast<size_t>(newline - piece);
        const uint8_t* const begin = skip_space(piece + at, piece + stop);
        if (begin < piece + stop) {
            End found = skip_value(begin, piece + stop);
            if (found.fault == Reason::none) {
                const uint8_t* const behind = skip_space(found.at, piece + stop);
                if (behind < piece + stop) found = {behind, Reason::several};
            }
            if (found.fault == Reason::none) {
                take(piece, at, static_cast<size_t>(begin - piece), static_cast<size_t>(found.at - piece), base);
            } else {
                refuse(piece, at, static_cast<size_t>(found.at - piece), base, found.fault);
            }
        }
        ++place.line;
        at = stop + (newline != nullptr);
    }
    return at;
}

size_t Scanner::feed_values(const uint8_t* piece, size_t size, int64_t base, bool final) {
    const uint8_t* const stop = piece + size;
    size_t at = 0;
    while (true) {
        const uint8_t* const begin = skip_space(piece + at, stop);
        place = text::place_of(piece + at, static_cast<size_t>(begin - piece) - at, place);
        at = static_cast<size_t>(begin - piece);
        if (begin == stop) return at;
        const End found = skip_value(begin, stop);
        if (!final && (found.fault == Reason::ends || found.at == stop)) return at;
        size_t end = static_cast<size_t>(found.at - piece);
        if (found.fault == Reason::none) {
            take(piece, at, at, end, base);
        } else {
            const void* const newline = end < size ? std::memchr(piece + end, '\n', size - end) : nullptr;
            if (newline == nullptr && !final) return at;
            refuse(piece, at, end, base, found.fault);
            end = newline == nullptr ? size : static_cast<size_t>(static_cast<const uint8_t*>(newline) - piece);
        }
        place = text::place_of(begin, end - at, place);
        at = end;
    }
}

size_t Scanner::feed_array(const uint8_t* piece, size_t size, int64_t base, bool final) {
    const uint8_t* const stop = piece + size;
    size_t at = 0;
    while (!broken) {
        const uint8_t* const begin = skip_space(piece + at, stop);
        place = text::place_of(piece + at, static_cast<size_t>(begin - piece) - at, place);
        at = static_cast<size_t>(begin - piece);
        if (begin == stop) {
            broken = final && !closed;
            if (broken) refuse(piece, at, at, base, Reason::ends);
            return at;
        }
        if (closed || !opened) {
            broken = closed || *begin != '[';
            if (broken) refuse(piece, at, at, base, closed ? Reason::several : Reason::syntax);
            opened = true;
            ++place.column;
            ++at;
            continue;
        }
        if (*begin == ']') {
            closed = true;
            ++place.column;
            ++at;
            continue;
        }
        const uint8_t* const value = comma && *begin == ',' ? skip_space(begin + 1, stop) : begin;
        End found = comma && *begin != ',' ? End{begin, Reason::syntax} : skip_value(value, stop);
        if (!final && (found.fault == Reason::ends || found.at == stop)) return at;
        // The next byte tells an integer from a float.
        const size_t end = static_cast<size_t>(found.at - piece);
        if (found.fault != Reason::none) {
            refuse(piece, at, end, base, found.fault);
            broken = true;
            return at;
        }
        take(piece, at, static_cast<size_t>(value - piece), end, base);
        comma = true;
        place = text::place_of(begin, end - at, place);
        at = end;
    }
    return at;
}

// -- reading ----------------------------------------------------------------------------------------------

namespace {

void place(Places to, size_t entry, const uint8_t* data, const uint8_t* value, const uint8_t* end) {
    const bool string = *value == '"';
    to.kind[entry] = static_cast<uint8_t>(kind_of(value, string && has_escape(value, end)));
    to.start[entry] = value - data + string;
    to.size[entry] = end - value - 2 * string;
}

}  // namespace

text::Failure find(const uint8_t* data, size_t total, const int64_t* starts, const int64_t* sizes, size_t n,
                   const std::vector<std::string>& keys, bool bare, Places places) {
    std::unordered_map<std::string_view, size_t> numbers;
    for (size_t i = 0; i < keys.size(); ++i) numbers.emplace(keys[i], i);
    const size_t entries = n * (bare ? 1 : keys.size());
    std::fill_n(places.kind, entries, uint8_t{0});
    std::fill_n(places.start, entries, int64_t{0});
    std::fill_n(places.size, entries, int64_t{-1});
    for (size_t row = 0; row < n; ++row) {
        const auto fails = [&](const char* reason) {
            return text::Failure{static_cast<int64_t>(row), starts[row], reason};
        };
        if (starts[row] < 0 || sizes[row] <= 0 || static_cast<size_t>(starts[row]) > total ||
            static_cast<size_t>(sizes[row]) > total - static_cast<size_t>(starts[row])) {
            return fails("the record does not lie in the file");
        }
        const uint8_t* const at = data + starts[row];
        const uint8_t* const end = at + sizes[row];
        End found;
        if (bare) {
            found = skip_value(at, end);
            if (found.fault == Reason::none) place(places, row, data, at, found.at);
        } else {
            if (*at != '{') return fails("the record is not an object");
            size_t hint = 0;
            found = walk_object(
                at, end,
                [&](const uint8_t* name, size_t size, bool escaped, const uint8_t* value, const uint8_t* behind) {
                    size_t number = hint;
                    if (escaped || number >= keys.size() || keys[number].size() != size ||
                        std::memcmp(keys[number].data(), name, size) != 0) {
                        const std::string copy = escaped ? unescaped(name, size) : std::string();
                        const auto known =
                            numbers.find(escaped ? std::string_view(copy)
                                                 : std::string_view(reinterpret_cast<const char*>(name), size));
                        if (known == numbers.end()) return;
                        number = known->second;
                    }
                    hint = number + 1;
                    place(places, number * n + row, data, value, behind);
                });
        }
        if (found.fault != Reason::none) return fails("the record is not the one that was indexed");
    }
    return {};
}

text::Failure elements(const uint8_t* data, size_t size, std::vector<int64_t>& starts, std::vector<int64_t>& sizes) {
    const uint8_t* const end = data + size;
    const auto fails = [&](const uint8_t* at, const char* reason) {
        return text::Failure{static_cast<int64_t>(starts.size()), at - data, reason};
    };
    const uint8_t* at = skip_space(data, end);
    if (at == end || *at != '[') return fails(at, "this is no array");
    at = skip_space(at + 1, end);
    if (at < end && *at == ']') return {};
    while (true) {
        at = skip_space(at, end);
        const End behind = skip_value(at, end);
        if (behind.fault != Reason::none) return fails(behind.at, "this is no JSON");
        starts.push_back(at - data);
        sizes.push_back(behind.at - at);
        at = skip_space(behind.at, end);
        if (at == end) return fails(at, "the array is never closed");
        if (*at == ']') return {};
        if (*at != ',') return fails(at, "a comma is missing");
        ++at;
    }
}

uint8_t* unescape(const uint8_t* at, size_t size, uint8_t* out) {
    const uint8_t* const end = at + size;
    while (at < end) {
        if (*at != '\\' || end - at < 2) {
            *out++ = *at++;
            continue;
        }
        const uint8_t letter = at[1];
        if (letter != 'u' || end - at < 6) {
            const char* const known = "b\bf\fn\nr\rt\t";
            uint8_t means = letter;
            for (int i = 0; i < 10; i += 2) {
                if (static_cast<uint8_t>(known[i]) == letter) means = static_cast<uint8_t>(known[i + 1]);
            }
            *out++ = means;
            at += 2;
            continue;
        }
        auto unit = static_cast<uint32_t>(hex4(at + 2));
        at += 6;
        if (unit >= 0xd800 && unit < 0xe000) {
            const int low = unit < 0xdc00 && end - at >= 6 && at[0] == '\\' && at[1] == 'u' ? hex4(at + 2) : -1;
            if (low >= 0xdc00 && low < 0xe000) {
                unit = 0x10000 + ((unit - 0xd800) << 10) + static_cast<uint32_t>(low - 0xdc00);
                at += 6;
            } else {
                unit = 0xfffd;
            }
        }
        if (unit < 0x80) {
            *out++ = static_cast<uint8_t>(unit);
        } else if (unit < 0x800) {
            *out++ = static_cast<uint8_t>(0xc0 | unit >> 6);
            *out++ = static_cast<uint8_t>(0x80 | (unit & 63));
        } else if (unit < 0x10000) {
            *out++ = static_cast<uint8_t>(0xe0 | unit >> 12);
            *out++ = static_cast<uint8_t>(0x80 | (unit >> 6 & 63));
            *out++ = static_cast<uint8_t>(0x80 | (unit & 63));
        } else {
            *out++ = static_cast<uint8_t>(0xf0 | (unit >> 18 & 7));
            *out++ = static_cast<uint8_t>(0x80 | (unit >> 12 & 63));
            *out++ = static_cast<uint8_t>(0x80 | (unit >> 6 & 63));
            *out++ = static_cast<uint8_t>(0x80 | (unit & 63));
        }
    }
    return out;
}

namespace {

struct Filler {
    const uint8_t* end;
    text::Dtype dtype;
    const std::vector<int64_t>& dims;
    std::vector<uint8_t>& out;

    // Behind the list, or null.
    const uint8_t* fill(const uint8_t* at, size_t axis) {
        if (at == end || *at != '[') return nullptr;
        at = skip_space(at + 1, end);
        int64_t count = 0;
        while (at < end && *at != ']') {
            if (count > 0) {
                if (*at != ',') return nullptr;
                at = skip_space(at + 1, end);
            }
            if (axis + 1 < dims.size()) {
                at = fill(at, axis + 1);
                if (at == nullptr) return nullptr;
            } else {
                const uint8_t* behind = at;
                while (behind < end && *behind != ',' && *behind != ']' && !is_space(*behind)) ++behind;
                const size_t place = out.size();
                out.resize(place + dtype.size);
                if (!text::parse_number(at, behind, dtype, out.data() + place)) return nullptr;
                at = behind;
            }
            at = skip_space(at, end);
            ++count;
        }
        return at < end && (dims[axis] < 0 || dims[axis] == count) ? at + 1 : nullptr;
    }
};

}  // namespace

text::Failure arrays(const uint8_t* data, const int64_t* starts, const int64_t* sizes, size_t n, text::Dtype dtype,
                     const std::vector<int64_t>& dims, std::vector<uint8_t>& out, int64_t* offsets) {
    offsets[0] = 0;
    for (size_t row = 0; row < n; ++row) {
        if (sizes[row] >= 0) {
            const uint8_t* const at = data + starts[row];
            const uint8_t* const end = at + sizes[row];
            const uint8_t* const behind = Filler{end, dtype, dims, out}.fill(skip_space(at, end), 0);
            if (behind == nullptr || skip_space(behind, end) != end) {
                return {static_cast<int64_t>(row), starts[row], "not a list of such numbers"};
            }
        }
        offsets[row + 1] = static_cast<int64_t>(out.size());
    }
    return {};
}

void check(const uint8_t* data, const int64_t* starts, const int64_t* sizes, size_t n, uint8_t* reasons) {
    for (size_t row = 0; row < n; ++row) {
        reasons[row] = 0;
        if (sizes[row] < 0) continue;
        const uint8_t* const at = data + starts[row];
        const uint8_t* const end = at + sizes[row];
        End found = skip_value(at, end);
        if (found.fault == Reason::none && skip_space(found.at, end) != end) found.fault = Reason::several;
        if (found.fault == Reason::none &&
            text::valid_utf8(at, static_cast<size_t>(end - at)) != static_cast<size_t>(end - at)) {
            found.fault = Reason::utf8;
        }
        reasons[row] = static_cast<uint8_t>(found.fault);
    }
}

}  // namespace batchplant::json
