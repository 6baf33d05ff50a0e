#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

// Masks as COCO keeps them: how many pixels are out, how many in, and so on, down the columns. As text, each count is
// told by its difference to the one two before, five bits a letter.

namespace batchplant::rle {

using Counts = std::vector<int64_t>;

// The counts of a text; false where it is none, or they are not `pixels` together.
bool parse(const uint8_t* text, size_t size, int64_t pixels, Counts& out);
std::string text_of(std::span<const int64_t> counts);

// Sets those pixels of `out` (row after row) that are in to `value`. The counts are `height * width` together.
template <typename Pixel>
void paint(std::span<const int64_t> counts, size_t height, size_t width, Pixel value, Pixel* out);

// The counts of a mask: what is not 0 is in.
void of_mask(const uint8_t* mask, size_t height, size_t width, Counts& out);

// The counts of a polygon (x, y, x, y, …), whose edge is followed on a grid five times as fine, as pycocotools does.
// False where it reaches so far that following it would take long.
bool of_polygon(std::span<const double> corners, size_t height, size_t width, Counts& out);

}  // namespace batchplant::rle
