#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "jitter.hpp"
#include "jpeg.hpp"
#include "output.hpp"
#include "../io/pool.hpp"
#include "probe.hpp"
#include "resample.hpp"
#include "warp.hpp"
#include "windows.hpp"

namespace batchplant {

// Bytes that cells lie in, for example a mapped file. Borrowed.
struct Buffer {
    const uint8_t* data = nullptr;
    size_t size = 0;
};

// The numbers are part of the Python API (batchplant._native.Engine): append, never renumber.
// not_native: nothing is wrong, but this code has no way to decode it: another encoding than JPEG, PNG and WebP, or
// a kind of those that it leaves to others, or other channels than the output's.
enum class Status : int32_t { ok = 0, failed = 1, not_native = 2 };

// A batch of images to be decoded; all arrays borrowed, with one entry for each image of the output.
struct DecodeJob {
    std::vector<Buffer> bases;
    const int32_t* base = nullptr;   // which of the bases
    const int64_t* start = nullptr;  // where in it
    const int64_t* size = nullptr;
    const int32_t* shape = nullptr;  // height, width, channels of raw pixels; zeros for an encoded image. Or null.
    const double* box = nullptr;     // x0, y0, x1, y1 in the image; zeros for all of it. Or null.
    const uint8_t* flip = nullptr;   // left to right. Or null.
    const uint8_t* down = nullptr;   // upside down. Or null.
    const int32_t* place =
        nullptr;  // top, left, height, width in the output, whose rest is filled. Or null: all of it.
    // EXIF's orientation, 1 to 8, of encoded images: they are turned before all else, and the box is in the turned
    // image. Or null.
    const uint8_t* orient = nullptr;
    PixelMode mode = PixelMode::unknown;       // that PNG and WebP are to have; unknown: the one that has the channels
    uint64_t most_pixels = uint64_t{1} << 28;  // an encoded image that claims more fails
    Filter filter = Filter::area;
    JpegDct dct = JpegDct::accurate;
    bool fast_scale = false;  // let libjpeg shrink images that are at least twice the size that is needed
    bool strict = true;       // an image that libjpeg warns about fails
    Output output;
};

// Parts of JPEGs that a device makes pixels of: what their scans say goes to `out`, in the order in which it is ready.
// Each image there: three tables of 64 steps, its blocks, its entries; see CodedPart. Or the scans themselves, with
// `scans`: the tables of steps, four Huffman codes, its words; see ScanPart. All arrays borrowed.
struct CodeJob {
    std::vector<Buffer> bases;
    const int32_t* base = nullptr;
    const int64_t* start = nullptr;
    const int64_t* size = nullptr;
    const int64_t* part = nullptr;  // left, top, right, bottom in the image, whole pixels
    size_t count = 0;
    uint8_t* out = nullptr;
    size_t room = 0;
    // For each image: where in out it begins, or -1 where it is of another kind or there is no room; how many blocks
    // and entries (bits) it has; then first column, columns, first row, rows of the brightness, and of the colours, in
    // blocks. With `scans` also: MCUs in a row, rows of them, whether all bits have to be read, and a number that those
    // have in common who have the same codes.
    int64_t* table = nullptr;
    bool scans = false;

    size_t columns() const { return scans ? 15 : 11; }
    static constexpr size_t code_size = 288;  // with what is unused behind it
};

struct DecodeResult {
    std::vector<int32_t> status;
    std::vector<std::pair<size_t, std::string>> errors;  // of those that failed, in order
    size_t warnings = 0;                                 // by libjpeg, over all images
};

// Seconds of the threads by activity, summed over threads and calls.
struct Seconds {
    double decode = 0;
    double resample = 0;
};

// Encoded images in buffers; all arrays borrowed.
struct Cells {
    const std::vector<Buffer>& bases;
    const int32_t* base;
    const int64_t* start;
    const int64_t* size;
    size_t count;
};

// Has the kernel begin to read the cells of mapped files that are not in memory, all together.
void prefetch(const Cells& cells);

// Height and width of every image, as its header says; zeros where it says none, or there is no such cell.
void read_sizes(const Cells& cells, int32_t* height_width);

// Fills batches on threads of its own. Each thread keeps a decoder and scratch memory, so that from the second
// batch on almost nothing is allocated. Several threads may call it at once; their calls queue.
class Engine {
public:
    // Throws std::invalid_argument for a number or a cpu that cannot be. nice: see Pool. For tests: `kernels`, and
    // without `baseline` libjpeg alone decodes JPEGs.
    Engine(size_t threads, const std::vector<int>& cpus, int nice = 0, const Kernels& kernels = best_kernels(),
           bool baseline = true);
    ~Engine();

    // The error of one image is in the result, and the others are decoded all the same. An image
    // that failed is filled with zeros, one that is not native is left as it was.
    // Throws std::runtime_error after close(), and in a process forked from the one that made the engine.
    DecodeResult decode(const DecodeJob& job);

    // Reads scans, in parallel. The same runtime errors. Returns how many bytes of out are used.
    size_t code(const CodeJob& job);

    // Warps images, in parallel. The same runtime errors.
    void warp(const WarpJob& job);

    // Changes the colours of n images of so many pixels of three bytes, in place, in parallel. The same runtime errors.
    void jitter(uint8_t* images, size_t n, size_t pixels, const Jitter* amounts);

    // Runs work(index, worker) for every index below n on its threads; see Pool::parallel_for.
    template <typename Work>
    void share(size_t n, Work&& work) {
        pool_.parallel_for(n, work);
    }

    // Copies windows of the bases into dst, in parallel. The same runtime errors; every window is checked on both
    // sides before the first byte moves, and the index of the first bad one returned (nothing copied), or -1.
    // Windows must not overlap in dst.
    int64_t gather(const std::vector<Buffer>& bases, const Windows& windows, uint8_t* dst, size_t dst_size);

    // Waits until all work of the calls so far is handed out, so that the next call's begins at once: whoever
    // takes memory for its result only then needs less of it.
    void wait_turn() { pool_.wait_turn(); }

    size_t threads() const { return workers_.size(); }
    Seconds seconds() const;
    // Number of JPEGs that were decoded without libjpeg so far.
    size_t baseline_jpegs() const;

    // Waits for the calls under way, then ends the threads.
    void close() { pool_.close(); }

private:
    struct Worker;

    std::vector<std::unique_ptr<Worker>> workers_;
    Pool pool_;
};

}  // namespace batchplant
