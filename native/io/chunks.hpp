#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace batchplant {

enum class ChunkStep { blosc, crc32c, deflate, fletcher32, lz4, shuffle, zstd };

// How the values of a chunk become from its stored bytes: the steps in this order, then a swap of bytes. Each has a
// number. That of shuffle is the size of a value; that of Blosc, LZ4 and Zstandard, whose libraries are not linked, is
// the address of blosc_decompress_ctx, LZ4_decompress_safe or ZSTD_decompress in a library that Python has loaded.
struct ChunkCoding {
    std::vector<uint8_t> prefix;  // stands before the bytes of every whole chunk
    std::vector<std::pair<ChunkStep, size_t>> steps;
    size_t swap = 1;   // bytes of values that are stored the other way round
    size_t bytes = 0;  // of a chunk's values
};

// Decodes a chunk to `out`, which has room for its values. False for a chunk that is not whole, not of this coding or
// damaged; what lies in `out` then is of no meaning.
bool decode_chunk(const ChunkCoding& coding, const uint8_t* data, size_t size, uint8_t* out);

// The same for `size` bytes of a file from `start` on; a negative size: all that follow.
bool decode_chunk_file(const ChunkCoding& coding, const char* path, int64_t start, int64_t size, uint8_t* out);

// What a box takes of a chunk along one axis.
struct ChunkPart {
    int64_t inside;  // first value, in the chunk
    int64_t count;
    int64_t target;  // first value, in the box's place of the output
};

// Boxes of an array by the chunks that they touch. Chunks are in order of their indices.
struct ChunkBoxes {
    size_t axes = 0, count = 0;    // count: of boxes
    std::vector<int64_t> steps;    // of each axis
    std::vector<int64_t> indices;  // of the chunks: one number for each axis
    std::vector<size_t> firsts;    // the first piece of each chunk, and the end
    std::vector<int64_t> box;      // of each piece
    std::vector<ChunkPart> parts;  // of each piece, for each axis

    // boxes: for each the starts, the counts and the targets along all axes.
    ChunkBoxes(const int64_t* boxes, size_t n, std::vector<int64_t> steps_of_axes, const std::vector<int64_t>& chunks);
    size_t chunks() const { return firsts.size() - 1; }
};

// An array in memory; strides are in bytes.
struct StridedArray {
    uint8_t* data;
    std::vector<int64_t> shape, strides;
};

// Copies what the boxes take of one chunk. With `rows`, a row for each box, `out` has an axis of rows before the
// others. False where a piece leaves the chunk or the output.
bool copy_chunk(const ChunkBoxes& boxes, size_t chunk, const StridedArray& values, const StridedArray& out,
                const int64_t* rows, size_t itemsize);

}  // namespace batchplant
