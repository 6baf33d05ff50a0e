#include "text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>

namespace batchplant::text {
namespace {

const char* chars(const uint8_t* at) { return reinterpret_cast<const char*>(at); }

bool is_blank(uint8_t byte) { return byte == ' ' || byte == '\t'; }

bool is_digit(uint8_t byte) { return byte >= '0' && byte <= '9'; }

void trim(const uint8_t*& at, const uint8_t*& end) {
    while (at < end && is_blank(*at)) ++at;
    while (end > at && is_blank(end[-1])) --end;
}

bool equals(const uint8_t* at, const uint8_t* end, std::string_view lower) {
    if (static_cast<size_t>(end - at) != lower.size()) return false;
    for (size_t i = 0; i < lower.size(); ++i) {
        const uint8_t byte = at[i];
        if ((byte >= 'A' && byte <= 'Z' ? byte + 32 : byte) != lower[i]) return false;
    }
    return true;
}

// IEEE half, rounded to even.
uint16_t half_of(double value) {
    const float narrow = static_cast<float>(value);
    uint32_t bits;
    std::memcpy(&bits, &narrow, 4);
    const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    const double size = std::fabs(value);
    if (std::isnan(value)) return sign | 0x7e00;
    if (size >= 65520.0) return sign | 0x7c00;
    if (size < 0x1p-14) return sign | static_cast<uint16_t>(std::nearbyint(size * 0x1p24));
    int exponent;
    const double part = std::frexp(size, &exponent);  // 0.5 <= part < 1
    const auto digits = static_cast<uint32_t>(std::nearbyint(part * 2048.0));
    return sign | static_cast<uint16_t>((static_cast<uint32_t>(exponent + 14) << 10) + (digits - 1024));
}

float float_of(uint16_t half) {
    const int exponent = half >> 10 & 31;
    const int digits = half & 1023;
    double size = exponent == 0 ? digits * 0x1p-24 : std::ldexp(1024 + digits, exponent - 25);
    if (exponent == 31) size = digits == 0 ? INFINITY : NAN;
    return static_cast<float>((half & 0x8000) != 0 ? -size : size);
}

template <typename T>
bool parse_real(const uint8_t* at, const uint8_t* end, T& value) {
    // The library would take nan(anything) too.
    if (at < end && end[-1] == ')') return false;
    const auto found = std::from_chars(chars(at), chars(end), value);
    if (found.ptr != chars(end)) return false;
    if (found.ec == std::errc()) return true;
    if (found.ec != std::errc::result_out_of_range) return false;
    // Too small is zero, or nearly; too large is no number of this type.
    const std::string copy(chars(at), chars(end));
    value = static_cast<T>(sizeof(T) == 4 ? std::strtof(copy.c_str(), nullptr) : std::strtod(copy.c_str(), nullptr));
    return std::isfinite(value);
}

template <typename T>
bool parse_whole(const uint8_t* at, const uint8_t* end, uint8_t* out) {
    T value{};
    // Minus zero is zero, also where there are no negative numbers.
    if (std::is_unsigned_v<T> && end - at > 1 && *at == '-' &&
        std::all_of(at + 1, end, [](uint8_t b) { return b == '0'; })) {
        std::memcpy(out, &value, sizeof value);
        return true;
    }
    const auto found = std::from_chars(chars(at), chars(end), value);
    if (found.ec != std::errc() || found.ptr != chars(end)) return false;
    std::memcpy(out, &value, sizeof value);
    return true;
}

template <typename T>
void store(T value, uint8_t* out) {
    std::memcpy(out, &value, sizeof value);
}

}  // namespace

bool is_known(Dtype dtype) {
    const bool power = dtype.size == 1 || dtype.size == 2 || dtype.size == 4 || dtype.size == 8;
    if (dtype.kind == 'b') return dtype.size == 1;
    if (dtype.kind == 'f') return power && dtype.size > 1;
    return power && (dtype.kind == 'i' || dtype.kind == 'u');
}

bool parse_number(const uint8_t* at, const uint8_t* end, Dtype dtype, uint8_t* out) {
    trim(at, end);
    if (dtype.kind == 'b') {
        const bool yes = equals(at, end, "true") || equals(at, end, "1");
        if (!yes && !equals(at, end, "false") && !equals(at, end, "0")) return false;
        *out = yes;
        return true;
    }
    if (dtype.kind == 'f') {
        if (dtype.size == 4) {
            float value;
            if (!parse_real(at, end, value)) return false;
            store(value, out);
            return true;
        }
        double value;
        if (!parse_real(at, end, value)) return false;
        if (dtype.size == 8) {
            store(value, out);
            return true;
        }
        if (std::isfinite(value) && std::fabs(value) >= 65520.0) return false;
        store(half_of(value), out);
        return true;
    }
    const bool plain = dtype.kind == 'i';
    switch (dtype.size) {
        case 1: return plain ? parse_whole<int8_t>(at, end, out) : parse_whole<uint8_t>(at, end, out);
        case 2: return plain ? parse_whole<int16_t>(at, end, out) : parse_whole<uint16_t>(at, end, out);
        case 4: return plain ? parse_whole<int32_t>(at, end, out) : parse_whole<uint32_t>(at, end, out);
        default: return plain ? parse_whole<int64_t>(at, end, out) : parse_whole<uint64_t>(at, end, out);
    }
}

namespace {

// True if [at, end), whose digits before the point are [body, behind), is a real number. Only an exponent, or very
// many digits, could make it too large; then it is tried.
bool is_real(const uint8_t* at, const uint8_t* body, const uint8_t* behind, const uint8_t* end) {
    const uint8_t* point = behind;
    if (point < end && *point == '.') {
        ++point;
        while (point < end && is_digit(*point)) ++point;
    }
    if (point == end && end - body > 1 && end - at < 300) return true;
    double value;
    return parse_real(at, end, value);
}

}  // namespace

uint32_t classify(const uint8_t* at, const uint8_t* end) {
    trim(at, end);
    if (at == end) return other;
    const uint8_t first = *at;
    const bool minus = first == '-';
    const uint8_t* const body = at + minus;
    if (body < end && (is_digit(*body) || *body == '.')) {
        if (*body == '0' && body + 1 < end && is_digit(body[1])) return other;
        const uint8_t* behind = body;
        while (behind < end && is_digit(*behind)) ++behind;
        if (behind == end) {
            const auto count = end - body;
            const uint32_t sign = minus ? negative : 0u;
            if (count <= 15) return whole | sign;
            int64_t value;
            if (std::from_chars(chars(at), chars(end), value).ec == std::errc()) {
                const bool exact = value >= -(int64_t{1} << 53) && value <= int64_t{1} << 53;
                return whole | sign | (exact ? 0u : large);
            }
            uint64_t more;
            return !minus && std::from_chars(chars(at), chars(end), more).ec == std::errc() ? natural | large : other;
        }
        return is_real(at, body, behind, end) ? real : other;
    }
    if (equals(at, end, "true") || equals(at, end, "false")) return boolean;
    if (equals(body, end, "nan") || equals(body, end, "inf") || equals(body, end, "infinity")) return word;
    return other;
}

size_t valid_utf8(const uint8_t* data, size_t size) {
    size_t at = 0;
    while (at < size) {
        uint64_t eight;
        if (size - at >= 8 && (std::memcpy(&eight, data + at, 8), (eight & 0x8080808080808080u) == 0)) {
            at += 8;
            continue;
        }
        const uint8_t byte = data[at];
        if (byte < 0x80) {
            ++at;
            continue;
        }
        const size_t more = byte >= 0xf0 ? 3 : byte >= 0xe0 ? 2 : 1;
        if (byte < 0xc2 || byte > 0xf4 || size - at <= more) return at;
        for (size_t i = 1; i <= more; ++i) {
            if ((data[at + i] & 0xc0) != 0x80) return at;
        }
        // Longer than need be, a half of a pair, or behind the last character.
        const uint8_t next = data[at + 1];
        if ((byte == 0xe0 && next < 0xa0) || (byte == 0xed && next > 0x9f) || (byte == 0xf0 && next < 0x90) ||
            (byte == 0xf4 && next > 0x8f)) {
            return at;
        }
        at += more + 1;
    }
    return size;
}

Place place_of(const uint8_t* data, size_t at, Place place) {
    for (size_t i = 0; i < at; ++i) {
        const bool ends = data[i] == '\n' || (data[i] == '\r' && i + 1 < at && data[i + 1] != '\n');
        if (ends) {
            ++place.line;
            place.column = 1;
        } else {
            place.column += (data[i] & 0xc0) != 0x80;
        }
    }
    return place;
}

Failure numbers(const uint8_t* data, const int64_t* starts, const int64_t* sizes, size_t n, Dtype dtype, uint8_t* out) {
    for (size_t row = 0; row < n; ++row, out += dtype.size) {
        if (sizes[row] < 0) {
            std::memset(out, 0, dtype.size);
        } else if (const uint8_t* at = data + starts[row]; !parse_number(at, at + sizes[row], dtype, out)) {
            return {static_cast<int64_t>(row), starts[row], "not a number of this kind"};
        }
    }
    return {};
}

namespace {

constexpr char digits64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<int8_t, 256> values64() {
    std::array<int8_t, 256> found{};
    found.fill(-1);
    for (int i = 0; i < 64; ++i) found[static_cast<uint8_t>(digits64[i])] = static_cast<int8_t>(i);
    return found;
}

bool append_base64(const uint8_t* at, size_t size, std::vector<uint8_t>& out) {
    static constexpr std::array<int8_t, 256> values = values64();
    if (size % 4 != 0) return false;
    for (size_t i = 0; i < size; i += 4) {
        const bool last = i + 4 == size;
        const int pads = last ? (at[i + 3] == '=') + (at[i + 3] == '=' && at[i + 2] == '=') : 0;
        uint32_t word = 0;
        for (int k = 0; k < 4; ++k) {
            const int value = k >= 4 - pads ? 0 : values[at[i + static_cast<size_t>(k)]];
            if (value < 0) return false;
            word = word << 6 | static_cast<uint32_t>(value);
        }
        out.push_back(static_cast<uint8_t>(word >> 16));
        if (pads < 2) out.push_back(static_cast<uint8_t>(word >> 8));
        if (pads < 1) out.push_back(static_cast<uint8_t>(word));
    }
    return true;
}

}  // namespace

Failure from_base64(const uint8_t* data, const int64_t* starts, const int64_t* sizes, size_t n,
                    std::vector<uint8_t>& out, int64_t* offsets) {
    size_t total = 0;
    for (size_t row = 0; row < n; ++row) total += static_cast<size_t>(std::max<int64_t>(sizes[row], 0));
    out.reserve(total / 4 * 3);
    offsets[0] = 0;
    for (size_t row = 0; row < n; ++row) {
        if (sizes[row] > 0 && !append_base64(data + starts[row], static_cast<size_t>(sizes[row]), out)) {
            return {static_cast<int64_t>(row), starts[row], "not base64"};
        }
        offsets[row + 1] = static_cast<int64_t>(out.size());
    }
    return {};
}

// -- writing ----------------------------------------------------------------------------------------------

namespace {

using Out = std::vector<uint8_t>;

void put(Out& out, std::string_view text) { out.insert(out.end(), text.begin(), text.end()); }

void put(Out& out, const uint8_t* at, size_t size) { out.insert(out.end(), at, at + size); }

template <typename T>
T load(const uint8_t* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

template <typename T>
void put_whole(Out& out, T value) {
    char room[24];
    const auto done = std::to_chars(room, room + sizeof room, value);
    put(out, {room, static_cast<size_t>(done.ptr - room)});
}

template <typename T>
void put_real(Out& out, T value, bool json) {
    if (std::isnan(value)) return put(out, json ? "NaN" : "nan");
    if (std::isinf(value)) return put(out, value < 0 ? (json ? "-Infinity" : "-inf") : (json ? "Infinity" : "inf"));
    char room[48];
    const auto done = std::to_chars(room, room + sizeof room, value);
    const std::string_view text{room, static_cast<size_t>(done.ptr - room)};
    put(out, text);
    // So that it reads as a real number, and minus zero keeps its sign.
    if (text.find_first_of(".e") == std::string_view::npos) put(out, ".0");
}

void put_number(Out& out, const uint8_t* at, Dtype dtype, bool json) {
    switch (dtype.kind) {
        case 'b': return put(out, *at != 0 ? "true" : "false");
        case 'f':
            if (dtype.size == 8) return put_real(out, load<double>(at), json);
            return put_real(out, dtype.size == 4 ? load<float>(at) : float_of(load<uint16_t>(at)), json);
        case 'i':
            switch (dtype.size) {
                case 1: return put_whole<int>(out, load<int8_t>(at));
                case 2: return put_whole<int>(out, load<int16_t>(at));
                case 4: return put_whole(out, load<int32_t>(at));
                default: return put_whole(out, load<int64_t>(at));
            }
        default:
            switch (dtype.size) {
                case 1: return put_whole<unsigned>(out, load<uint8_t>(at));
                case 2: return put_whole<unsigned>(out, load<uint16_t>(at));
                case 4: return put_whole(out, load<uint32_t>(at));
                default: return put_whole(out, load<uint64_t>(at));
            }
    }
}

// The values of one cell as nested lists; gives the place behind them.
const uint8_t* put_array(Out& out, const uint8_t* at, int64_t count, const Part& part, size_t axis, bool json) {
    out.push_back('[');
    for (int64_t i = 0; i < count; ++i) {
        if (i > 0) out.push_back(',');
        if (axis == part.inner.size()) {
            put_number(out, at, part.dtype, json);
            at += part.dtype.size;
        } else {
            at = put_array(out, at, part.inner[axis], part, axis + 1, json);
        }
    }
    out.push_back(']');
    return at;
}

void put_base64(Out& out, const uint8_t* at, size_t size) {
    const size_t begin = out.size();
    out.resize(begin + (size + 2) / 3 * 4);
    uint8_t* to = out.data() + begin;
    for (size_t i = 0; i < size; i += 3, to += 4) {
        const size_t left = std::min<size_t>(3, size - i);
        uint32_t word = static_cast<uint32_t>(at[i]) << 16;
        if (left > 1) word |= static_cast<uint32_t>(at[i + 1]) << 8;
        if (left > 2) word |= at[i + 2];
        for (int k = 0; k < 4; ++k) {
            to[k] = static_cast<size_t>(k) > left ? '=' : static_cast<uint8_t>(digits64[word >> (18 - 6 * k) & 63]);
        }
    }
}

void put_json_text(Out& out, const uint8_t* at, size_t size) {
    static constexpr char hex[] = "0123456789abcdef";
    out.push_back('"');
    size_t done = 0;
    for (size_t i = 0; i < size; ++i) {
        const uint8_t byte = at[i];
        if (byte >= 0x20 && byte != '"' && byte != '\\' && byte != 0x7f) continue;
        put(out, at + done, i - done);
        done = i + 1;
        switch (byte) {
            case '"': put(out, "\\\""); break;
            case '\\': put(out, "\\\\"); break;
            case '\n': put(out, "\\n"); break;
            case '\r': put(out, "\\r"); break;
            case '\t': put(out, "\\t"); break;
            default:
                put(out, "\\u00");
                out.push_back(static_cast<uint8_t>(hex[byte >> 4]));
                out.push_back(static_cast<uint8_t>(hex[byte & 15]));
        }
    }
    put(out, at + done, size - done);
    out.push_back('"');
}

void put_csv_text(Out& out, const uint8_t* at, size_t size, char delimiter) {
    const bool quote =
        size == 0 || (size >= 3 && std::memcmp(at, "\xef\xbb\xbf", 3) == 0) ||
        std::any_of(at, at + size, [&](uint8_t byte) {
            return byte == '"' || byte == '\n' || byte == '\r' || byte == static_cast<uint8_t>(delimiter);
        });
    if (!quote) return put(out, at, size);
    out.push_back('"');
    size_t done = 0;
    for (size_t i = 0; i < size; ++i) {
        if (at[i] != '"') continue;
        put(out, at + done, i + 1 - done);
        out.push_back('"');
        done = i + 1;
    }
    put(out, at + done, size - done);
    out.push_back('"');
}

// JSON text on one line: line ends outside of strings are blanks, and inside there are none.
void put_json(Out& out, const uint8_t* at, size_t size) {
    const size_t begin = out.size();
    put(out, at, size);
    std::replace_if(
        out.begin() + static_cast<std::ptrdiff_t>(begin), out.end(), [](uint8_t b) { return b == '\n' || b == '\r'; },
        ' ');
}

void put_value(Out& out, const Part& part, size_t row, const Style& style) {
    const uint8_t* const at = part.data + part.starts[row];
    const auto size = static_cast<size_t>(part.sizes[row]);
    switch (part.mode) {
        case Mode::number: return put_number(out, at, part.dtype, style.json);
        case Mode::text:
            return style.json ? put_json_text(out, at, size) : put_csv_text(out, at, size, style.delimiter);
        case Mode::json: return style.json ? put_json(out, at, size) : put_csv_text(out, at, size, style.delimiter);
        case Mode::base64: {
            const bool quote = style.json || size == 0;
            if (quote) out.push_back('"');
            put_base64(out, at, size);
            if (quote) out.push_back('"');
            return;
        }
        case Mode::array: {
            size_t width = part.dtype.size;
            for (const int64_t axis : part.inner) width *= static_cast<size_t>(axis);
            if (!style.json) out.push_back('"');
            put_array(out, at, width == 0 ? 0 : static_cast<int64_t>(size / width), part, 0, true);
            if (!style.json) out.push_back('"');
        }
    }
}

}  // namespace

void pack(size_t rows, const std::vector<Part>& parts, const Style& style, std::vector<uint8_t>& out,
          int64_t* offsets) {
    offsets[0] = 0;
    for (size_t row = 0; row < rows; ++row) {
        put(out, style.before);
        if (style.json) out.push_back('{');
        bool first = true;
        for (const Part& part : parts) {
            const bool missing = part.sizes[row] < 0;
            if (missing && part.omit) continue;
            if (!first) out.push_back(style.json ? ',' : static_cast<uint8_t>(style.delimiter));
            first = false;
            put(out, part.key);
            if (!missing) {
                put_value(out, part, row, style);
            } else if (style.json) {
                put(out, "null");
            }
        }
        if (style.json) out.push_back('}');
        put(out, style.after);
        offsets[row + 1] = static_cast<int64_t>(out.size());
    }
}

}  // namespace batchplant::text
