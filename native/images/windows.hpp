#pragma once

#include <cstddef>
#include <cstdint>

namespace batchplant {

// Parts of images that lie in buffers: `rows` lines of `width` bytes, each `line` bytes after the one before it. They
// are wanted one line after the other, from `place` on. All arrays borrowed.
struct Windows {
    const int32_t* base;
    const int64_t* start;
    const int64_t* line;
    const int64_t* rows;
    const int64_t* width;
    const int64_t* place;
    size_t count;
};

// True if window i lies inside of the `size` bytes that it is taken from, and has its place in `room` bytes.
bool window_fits(const Windows& windows, size_t i, size_t size, size_t room);

// Its lines, one after the other.
void copy_window(const Windows& windows, size_t i, const uint8_t* from, uint8_t* to);

// Raw images of which boxes are wanted, each resized to `height` x `width` by a filter that sees `support` pixels
// around a pixel, or more where it shrinks the image. All arrays borrowed.
struct Wanted {
    const int64_t* start;  // of an image
    const int32_t* shape;  // height, width, channels
    const double* box;     // x0, y0, x1, y1 inside of it
    double support;
    double height;
    double width;
    size_t count;
};

// Results of `plan_windows`: a row of `count` numbers for each.
enum class WindowRow : size_t { top, left, rows, columns, start, line, width, place, count };

// Finds the part of each image that its box needs, and an offset for it, 16 bytes aligned; returns their total size.
int64_t plan_windows(const Wanted& wanted, int64_t* out);

}  // namespace batchplant
