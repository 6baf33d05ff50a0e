#pragma once

#include <cstddef>
#include <cstdint>

namespace batchplant {

// Every value becomes what stands for it in the table.
void look_up(const uint8_t table[256], uint8_t* values, size_t count);

// The value of every level, by the table of its channel: `tables` holds 256 for each. Numbers of 2, 4 or 8 bytes.
template <typename T>
void look_up_pixels(const T* tables, const uint8_t* pixels, size_t count, size_t channels, T* out) {
    if (channels == 3) {
        const T *red = tables, *green = tables + 256, *blue = tables + 512;
        for (size_t i = 0; i < 3 * count; i += 3) {
            const T first = red[pixels[i]], second = green[pixels[i + 1]], third = blue[pixels[i + 2]];
            out[i] = first;
            out[i + 1] = second;
            out[i + 2] = third;
        }
        return;
    }
    for (size_t i = 0; i < count; ++i, pixels += channels, out += channels) {
        for (size_t c = 0; c < channels; ++c) out[c] = tables[256 * c + pixels[c]];
    }
}

// The same with the channels of an image of `count` pixels behind each other.
template <typename T>
void look_up_planes(const T* tables, const uint8_t* pixels, size_t count, size_t channels, T* out) {
    if (channels == 3) {
        const T *red = tables, *green = tables + 256, *blue = tables + 512;
        T *first = out, *second = out + count, *third = out + 2 * count;
        for (size_t i = 0; i < count; ++i, pixels += 3) {
            first[i] = red[pixels[0]];
            second[i] = green[pixels[1]];
            third[i] = blue[pixels[2]];
        }
        return;
    }
    for (size_t c = 0; c < channels; ++c, tables += 256, out += count) {
        for (size_t i = 0; i < count; ++i) out[i] = tables[pixels[i * channels + c]];
    }
}

}  // namespace batchplant
