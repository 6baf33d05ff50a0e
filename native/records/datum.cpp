#include "datum.hpp"

#include <cstring>

namespace batchplant {
namespace {

constexpr uint32_t varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5;
enum Field : uint64_t { channels = 1, height = 2, width = 3, data_field = 4, label = 5, float_data = 6, encoded = 7 };

struct Cursor {
    const uint8_t* data;
    size_t size;
    size_t at = 0;

    bool number(uint64_t& value) {
        value = 0;
        for (int shift = 0; shift < 64 && at < size; shift += 7) {
            const uint8_t byte = data[at++];
            value |= static_cast<uint64_t>(byte & 0x7f) << shift;
            if (byte < 0x80) return true;
        }
        return false;
    }

    bool skip(uint64_t count) {
        if (count > size - at) return false;
        at += static_cast<size_t>(count);
        return true;
    }
};

// Gives every field to `take(field, kind, value, start)`; for bytes, value is their length.
template <typename Take>
const char* each_field(const uint8_t* data, size_t size, Take take) {
    Cursor cursor{data, size};
    while (cursor.at < size) {
        uint64_t tag = 0, value = 0;
        if (!cursor.number(tag) || tag >> 3 == 0) return "this is not a Datum message";
        const auto kind = static_cast<uint32_t>(tag & 7);
        if ((kind == varint || kind == bytes) && !cursor.number(value)) return "a number in the Datum is damaged";
        const size_t start = cursor.at;
        bool inside = true;
        if (kind == bytes) {
            inside = cursor.skip(value);
        } else if (kind == fixed32) {
            inside = cursor.skip(4);
        } else if (kind == fixed64) {
            inside = cursor.skip(8);
        } else if (kind != varint) {
            return "this is not a Datum message";
        }
        if (!inside) return "the Datum ends within a field";
        if (const char* wrong = take(tag >> 3, kind, value, start)) return wrong;
    }
    return nullptr;
}

}  // namespace

const char* parse_datum(const uint8_t* data, size_t size, Datum& datum) {
    datum = {};
    return each_field(data, size, [&](uint64_t field, uint32_t kind, uint64_t value, size_t start) -> const char* {
        const bool known = field <= encoded;
        const bool fits = field == data_field   ? kind == bytes
                          : field == float_data ? kind == fixed32 || (kind == bytes && value % 4 == 0)
                                                : kind == varint;
        if (known && !fits) return "a field of the Datum has the wrong type";
        // Numbers are int32: a negative one is written with ten bytes.
        const int64_t number = static_cast<int32_t>(static_cast<uint32_t>(value));
        switch (field) {
            case channels: datum.channels = number; break;
            case height: datum.height = number; break;
            case width: datum.width = number; break;
            case label: datum.label = number; break;
            case encoded: datum.encoded = value != 0; break;
            case data_field:
                datum.data_start = static_cast<int64_t>(start);
                datum.data_size = static_cast<int64_t>(value);
                break;
            case float_data:
                if (datum.float_count == 0) datum.float_start = static_cast<int64_t>(start);
                datum.float_count += kind == bytes ? static_cast<int64_t>(value / 4) : 1;
                break;
            default: break;
        }
        return nullptr;
    });
}

void copy_datum_floats(const uint8_t* data, size_t size, float* out) {
    each_field(data, size, [&](uint64_t field, uint32_t kind, uint64_t value, size_t start) -> const char* {
        if (field != float_data) return nullptr;
        const size_t count = kind == bytes ? static_cast<size_t>(value / 4) : 1;
        // A run of no values may stand before memory was taken for any.
        if (count > 0) std::memcpy(out, data + start, 4 * count);
        out += count;
        return nullptr;
    });
}

}  // namespace batchplant
