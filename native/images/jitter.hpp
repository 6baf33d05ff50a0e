#pragma once

#include <cstddef>
#include <cstdint>

namespace batchplant {

// Amounts for an image, in the order in which they are applied; NaN means no change.
struct Jitter {
    float brightness;  // 0 black, 1 as it is
    float contrast;    // 0 the mean gray, 1 as it is
    float saturation;  // 0 gray, 1 as it is
    float hue;         // by this part of the circle, from -0.5 to 0.5
};

// Changes the colours of `pixels` pixels of three bytes. After each change, fractions are cut off; hues are rounded.
void jitter(uint8_t* image, size_t pixels, const Jitter& amounts) noexcept;

}  // namespace batchplant
