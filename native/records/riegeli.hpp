#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// Chunks of Riegeli/records, which ArrayRecord files consist of. A chunk is a header of 40 bytes, its data, and
// padding. At every multiple of 64 KiB a block header of 24 bytes interrupts the chunk that lies there. All integers
// are little-endian; hashes are HighwayHash-64.

namespace batchplant {

struct RiegeliChunk {
    const char* error = nullptr;  // why the chunk is not sound
    int64_t size = 0;             // of its data, without block headers
    int64_t kind = 0;
    int64_t records = 0;
    int64_t decoded = 0;  // sum of the sizes of its records
};

// Reads the chunk that begins at `data` and lies at `position` of its file. Writes its data to `out`, which has room
// for `size` bytes, and compares both hashes.
RiegeliChunk read_riegeli(const uint8_t* data, size_t size, uint64_t position, uint8_t* out);

// Appends a chunk that will begin at `position` of a file to `out`.
void frame_riegeli(const uint8_t* data, const RiegeliChunk& chunk, uint64_t position, std::vector<uint8_t>& out);

}  // namespace batchplant
