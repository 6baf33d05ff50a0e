#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// RecordIO as dmlc-core writes it: u32 magic, u32 (flag << 29 | length), data, zeros up to a multiple of four.
// A record is cut where its data has the magic at a multiple of four; the magic itself is left out there.

namespace batchplant {

constexpr uint32_t recordio_magic = 0xced7230a;
constexpr uint64_t recordio_most = (1u << 29) - 1;

struct RecordIoScan {
    std::vector<int64_t> starts;  // of the header of every record
    std::vector<int64_t> sizes;   // of its data, the parts of a cut record joined
    std::vector<int64_t> split;   // numbers of the records that are cut into parts
    // The first word of every record, which counts the labels of an image record.
    uint32_t least_flag = UINT32_MAX;
    uint32_t most_flag = 0;
    size_t end = 0;               // behind the last whole record
    const char* error = nullptr;  // why the scan stopped at `error_at`; nullptr at the end of the data
    size_t error_at = 0;
    bool cut = false;  // the data end within a record
};

// Scans the records that begin in [at, until). The whole of `data` may be looked at.
RecordIoScan scan_recordio(const uint8_t* data, size_t size, size_t at, size_t until);

// Writes the data of the record whose header is at `start` to `out`, parts joined. False where the record is not
// sound or its data are not exactly `out_size` bytes.
bool join_recordio(const uint8_t* data, size_t size, int64_t start, uint8_t* out, size_t out_size);

// Bytes of a record in a file, with header, cuts and padding.
size_t framed_recordio_size(const uint8_t* data, size_t size);

// Writes the record as it stands in a file; gives the place behind it.
uint8_t* frame_recordio(const uint8_t* data, size_t size, uint8_t* out);

}  // namespace batchplant
