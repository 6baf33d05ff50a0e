#include "turn.hpp"

#include <cstring>
#include <utility>

namespace batchplant {
namespace {

void mirror(size_t& from, size_t& to, size_t length) {
    const size_t first = length - to;
    to = length - from;
    from = first;
}

}  // namespace

Turn::Turn(unsigned orientation, size_t stored_width, size_t stored_height)
    : width_(stored_width),
      height_(stored_height),
      swap_(orientation >= 5 && orientation <= 8),
      mirror_x_(orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8),
      mirror_y_(orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7) {}

Region Turn::stored(const Region& turned) const {
    Region region = turned;
    if (swap_) {
        std::swap(region.left, region.top);
        std::swap(region.right, region.bottom);
    }
    if (mirror_x_) mirror(region.left, region.right, width_);
    if (mirror_y_) mirror(region.top, region.bottom, height_);
    return region;
}

size_t Turn::stored_x(size_t x, size_t y) const {
    const size_t at = swap_ ? y : x;
    return mirror_x_ ? width_ - 1 - at : at;
}

size_t Turn::stored_y(size_t x, size_t y) const {
    const size_t at = swap_ ? x : y;
    return mirror_y_ ? height_ - 1 - at : at;
}

PixelView turn_pixels(const PixelView& stored, const Turn& turn, const Region& need, size_t channels,
                      Scratch& scratch) {
    if (!turn.turns()) return stored;
    const size_t stride = need.width() * channels, bytes = stride * need.height();
    uint8_t* to = scratch.room(bytes + overrun);
    // From one pixel of a row to the next it is always the same way.
    const auto place = [&](size_t x, size_t y) {
        const size_t row = turn.stored_y(x, y) - stored.region.top, column = turn.stored_x(x, y) - stored.region.left;
        return static_cast<std::ptrdiff_t>(row * stored.stride + column * channels);
    };
    const std::ptrdiff_t step = need.width() < 2 ? 0 : place(need.left + 1, need.top) - place(need.left, need.top);
    for (size_t y = need.top; y < need.bottom; ++y) {
        const uint8_t* from = stored.pixels + place(need.left, y);
        for (size_t x = need.left; x < need.right; ++x, to += channels, from += step) {
            for (size_t c = 0; c < channels; ++c) to[c] = from[c];
        }
    }
    return {scratch.data(), stride, need, scratch.data() + bytes + overrun};
}

}  // namespace batchplant
