#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace batchplant {

// A record of a TFRecord file: u64 length, u32 masked CRC-32C of those 8 bytes, the data, u32 masked CRC-32C of
// the data. Little-endian.
constexpr size_t tfrecord_head = 12;
constexpr size_t tfrecord_tail = 4;

// The numbers are part of the Python API (batchplant._native.tfrecord_scan): append, never renumber.
enum class TfRecordFault : int32_t {
    none = 0,
    short_head = 1,   // the file ends inside a length or its checksum
    bad_length = 2,   // the checksum of the length is wrong
    short_data = 3,   // the file ends inside the data or its checksum
    bad_data = 4,     // the checksum of the data is wrong
    other_length = 5  // the record's length is not the one that was expected
};

struct TfRecordScan {
    std::vector<int64_t> starts;  // of the data
    std::vector<int64_t> sizes;
    uint64_t next = 0;  // where the record after the last begins; with a fault, where the faulty one does
    TfRecordFault fault = TfRecordFault::none;
};

// The records that begin in [at, until). The checksums of lengths are always checked.
TfRecordScan scan_tfrecord(const uint8_t* data, size_t size, uint64_t at, uint64_t until, bool check_data);

struct TfRecordCheck {
    int64_t row = -1;  // the first bad record, or -1
    TfRecordFault fault = TfRecordFault::none;
};

// True if there are records of these sizes at these offsets: the lengths in front of them and, with check_data, the
// checksums behind them.
TfRecordCheck check_tfrecords(const uint8_t* data, size_t size, const int64_t* starts, const int64_t* sizes, size_t n,
                              bool check_data);

// The same with check_data, and the data of the records is copied to out_starts in out on the way. The caller
// has checked the runs in out. After a fault, out is partly written.
TfRecordCheck copy_tfrecords(const uint8_t* data, size_t size, const int64_t* starts, const int64_t* sizes, size_t n,
                             uint8_t* out, const int64_t* out_starts);

// Bytes that n runs take as records. The runs lie in memory, so the sum does not overflow.
size_t framed_size(const int64_t* sizes, size_t n);

// Writes the runs as records, one after another, to out, which has framed_size bytes. The runs lie in the data.
void frame_tfrecords(const uint8_t* data, const int64_t* starts, const int64_t* sizes, size_t n, uint8_t* out);

}  // namespace batchplant
