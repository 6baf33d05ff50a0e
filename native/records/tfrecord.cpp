#include "tfrecord.hpp"

#include <bit>
#include <cstring>

#include "../io/bytes.hpp"
#include "../io/crc.hpp"

namespace batchplant {
namespace {

static_assert(std::endian::native == std::endian::little, "lengths and checksums are loaded as they lie");

constexpr size_t frame = tfrecord_head + tfrecord_tail;

uint64_t load64(const uint8_t* p) {
    uint64_t value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

uint32_t load32(const uint8_t* p) {
    uint32_t value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

uint32_t mask(uint32_t crc) { return std::rotr(crc, 15) + 0xA282EAD8u; }

uint32_t masked(const uint8_t* data, size_t size) { return mask(crc32c(data, size)); }

bool data_is_whole(const uint8_t* data, size_t size) { return load32(data + size) == masked(data, size); }

bool copy_whole(const uint8_t* data, size_t size, uint8_t* out) {
    return load32(data + size) == mask(crc32c_copy(data, size, out));
}

}  // namespace

TfRecordScan scan_tfrecord(const uint8_t* data, size_t size, uint64_t at, uint64_t until, bool check_data) {
    TfRecordScan scan;
    scan.next = at;
    while (scan.next < size && scan.next < until) {
        const uint64_t start = scan.next;
        const uint64_t left = size - start;
        if (left < tfrecord_head) {
            scan.fault = TfRecordFault::short_head;
            break;
        }
        const uint8_t* head = data + start;
        if (load32(head + 8) != masked(head, 8)) {
            scan.fault = TfRecordFault::bad_length;
            break;
        }
        const uint64_t length = load64(head);
        if (left < frame || length > left - frame) {
            scan.fault = TfRecordFault::short_data;
            break;
        }
        if (check_data && !data_is_whole(head + tfrecord_head, length)) {
            scan.fault = TfRecordFault::bad_data;
            break;
        }
        scan.starts.push_back(static_cast<int64_t>(start + tfrecord_head));
        scan.sizes.push_back(static_cast<int64_t>(length));
        scan.next = start + frame + length;
    }
    return scan;
}

namespace {

// Looks at the frame of each record, and has its data looked at by is_whole(record, size, row).
template <typename IsWhole>
TfRecordCheck check_each(const uint8_t* data, size_t size, const int64_t* starts, const int64_t* sizes, size_t n,
                         IsWhole&& is_whole) {
    for (size_t i = 0; i < n; ++i) {
        if (i + 2 < n && run_fits(starts[i + 2], sizes[i + 2], size)) prefetch_run(data + starts[i + 2], sizes[i + 2]);
        const auto row = static_cast<int64_t>(i);
        const auto head = static_cast<int64_t>(tfrecord_head);
        if (starts[i] < head || !run_fits(starts[i], sizes[i], size)) return {row, TfRecordFault::short_data};
        const size_t left = size - static_cast<size_t>(starts[i]) - static_cast<size_t>(sizes[i]);
        if (left < tfrecord_tail) return {row, TfRecordFault::short_data};
        const uint8_t* record = data + starts[i];
        if (load64(record - head) != static_cast<uint64_t>(sizes[i])) return {row, TfRecordFault::other_length};
        if (!is_whole(record, static_cast<size_t>(sizes[i]), i)) return {row, TfRecordFault::bad_data};
    }
    return {};
}

}  // namespace

TfRecordCheck check_tfrecords(const uint8_t* data, size_t size, const int64_t* starts, const int64_t* sizes, size_t n,
                              bool check_data) {
    return check_each(data, size, starts, sizes, n, [&](const uint8_t* record, size_t length, size_t) {
        return !check_data || data_is_whole(record, length);
    });
}

TfRecordCheck copy_tfrecords(const uint8_t* data, size_t size, const int64_t* starts, const int64_t* sizes, size_t n,
                             uint8_t* out, const int64_t* out_starts) {
    return check_each(data, size, starts, sizes, n, [&](const uint8_t* record, size_t length, size_t row) {
        return copy_whole(record, length, out + out_starts[row]);
    });
}

size_t framed_size(const int64_t* sizes, size_t n) {
    size_t total = n * frame;
    for (size_t i = 0; i < n; ++i) total += static_cast<size_t>(sizes[i]);
    return total;
}

void frame_tfrecords(const uint8_t* data, const int64_t* starts, const int64_t* sizes, size_t n, uint8_t* out) {
    for (size_t i = 0; i < n; ++i) {
        const auto length = static_cast<uint64_t>(sizes[i]);
        std::memcpy(out, &length, sizeof length);
        const uint32_t length_sum = masked(out, 8);
        std::memcpy(out + 8, &length_sum, sizeof length_sum);
        out += tfrecord_head;
        // An empty run may come with a null buffer, which memcpy must not be given.
        if (length > 0) std::memcpy(out, data + starts[i], length);
        const uint32_t data_sum = masked(out, length);
        std::memcpy(out + length, &data_sum, sizeof data_sum);
        out += length + tfrecord_tail;
    }
}

}  // namespace batchplant
