#include "recordio.hpp"

#include <algorithm>
#include <cstring>

namespace batchplant {
namespace {

constexpr size_t header_size = 8;

enum Part : uint32_t { whole = 0, first = 1, middle = 2, last = 3 };

uint32_t read_u32(const uint8_t* at) {
    return static_cast<uint32_t>(at[0]) | static_cast<uint32_t>(at[1]) << 8 | static_cast<uint32_t>(at[2]) << 16 |
           static_cast<uint32_t>(at[3]) << 24;
}

void write_u32(uint8_t* at, uint32_t value) {
    for (int i = 0; i < 4; ++i) at[i] = static_cast<uint8_t>(value >> (8 * i));
}

size_t padded(size_t size) { return (size + 3) & ~size_t{3}; }

struct Header {
    uint32_t part;
    size_t size;
};

// nullptr, or what is wrong with the part whose header is at `at`.
const char* read_header(const uint8_t* data, size_t size, size_t at, Header& header, bool& cut) {
    if (size - at < header_size) {
        cut = true;
        return "the file ends within the header of a record";
    }
    if (read_u32(data + at) != recordio_magic) return "no record begins here";
    const uint32_t word = read_u32(data + at + 4);
    header = {word >> 29, word & static_cast<uint32_t>(recordio_most)};
    if (header.part > last) return "the header of this record is damaged";
    if (size - at - header_size < padded(header.size)) {
        cut = true;
        return "the file ends within a record";
    }
    return nullptr;
}

const char* wrong_order(bool inside, uint32_t part) {
    const bool continues = part == middle || part == last;
    if (inside == continues) return nullptr;
    return inside ? "the rest of a split record is missing" : "the beginning of a split record is missing";
}

}  // namespace

RecordIoScan scan_recordio(const uint8_t* data, size_t size, size_t at, size_t until) {
    RecordIoScan scan;
    scan.end = at;
    until = std::min(until, size);
    while (at < until) {
        const size_t start = at;
        size_t joined = 0;
        // The first word of the data, as far as it lies in the first part; then the magic itself comes next.
        uint32_t flag = recordio_magic;
        bool inside = false;
        Header header{};
        do {
            scan.error = read_header(data, size, at, header, scan.cut);
            if (scan.error == nullptr) scan.error = wrong_order(inside, header.part);
            if (scan.error != nullptr) {
                scan.error_at = at;
                return scan;
            }
            if (!inside && header.size >= 4) flag = read_u32(data + at + header_size);
            if (inside) joined += 4;
            joined += header.size;
            at += header_size + padded(header.size);
            inside = header.part == first || header.part == middle;
        } while (inside);
        if (header.part == last) scan.split.push_back(static_cast<int64_t>(scan.starts.size()));
        if (joined < 4) flag = 0;
        scan.least_flag = std::min(scan.least_flag, flag);
        scan.most_flag = std::max(scan.most_flag, flag);
        scan.starts.push_back(static_cast<int64_t>(start));
        scan.sizes.push_back(static_cast<int64_t>(joined));
        scan.end = at;
    }
    return scan;
}

bool join_recordio(const uint8_t* data, size_t size, int64_t start, uint8_t* out, size_t out_size) {
    if (start < 0 || static_cast<uint64_t>(start) > size) return false;
    size_t at = static_cast<size_t>(start);
    size_t done = 0;
    bool inside = false;
    do {
        Header header{};
        bool cut = false;
        if (read_header(data, size, at, header, cut) != nullptr || wrong_order(inside, header.part) != nullptr)
            return false;
        if (inside) {
            if (out_size - done < 4) return false;
            write_u32(out + done, recordio_magic);
            done += 4;
        }
        if (out_size - done < header.size) return false;
        // An empty record may come with a null buffer, which memcpy must not be given.
        if (header.size > 0) std::memcpy(out + done, data + at + header_size, header.size);
        done += header.size;
        at += header_size + padded(header.size);
        inside = header.part == first || header.part == middle;
    } while (inside);
    return done == out_size;
}

size_t framed_recordio_size(const uint8_t* data, size_t size) {
    size_t cuts = 0;
    for (size_t i = 0; i + 4 <= size; i += 4) cuts += read_u32(data + i) == recordio_magic;
    // Every cut adds a header and leaves out the magic.
    return header_size + padded(size) + cuts * (header_size - 4);
}

uint8_t* frame_recordio(const uint8_t* data, size_t size, uint8_t* out) {
    size_t done = 0;
    const auto put = [&](uint32_t part, size_t end) {
        write_u32(out, recordio_magic);
        write_u32(out + 4, part << 29 | static_cast<uint32_t>(end - done));
        if (end > done) std::memcpy(out + header_size, data + done, end - done);
        out += header_size + (end - done);
    };
    for (size_t i = 0; i + 4 <= size; i += 4) {
        if (read_u32(data + i) != recordio_magic) continue;
        put(done == 0 ? first : middle, i);
        done = i + 4;
    }
    put(done == 0 ? whole : last, size);
    const size_t rest = padded(size) - size;
    std::memset(out, 0, rest);
    return out + rest;
}

}  // namespace batchplant
