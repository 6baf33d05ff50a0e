#pragma once

#include <cstddef>
#include <cstdint>

namespace batchplant {

// The draw with this number of the sample that has this key: from 0 up to 1. The same arithmetic as in Python,
// batchplant.order.keyed.
double draw(uint64_t key, uint64_t number);

struct BoxRule {
    double least_area, most_area;      // of the image's
    double least_aspect, most_aspect;  // width by height
    int tries;
    uint64_t first;  // number of the first draw: one for each try's area, one for each try's aspect, two for the place
};

// A box in the image: x0, y0, x1, y1. If no try fits, the largest in the middle of an allowed aspect.
void random_box(uint64_t key, double height, double width, const BoxRule& rule, double* box);

}  // namespace batchplant
