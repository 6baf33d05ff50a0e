#include "draw.hpp"

#include <algorithm>
#include <cmath>

#include "permute.hpp"

namespace batchplant {

double draw(uint64_t key, uint64_t number) {
    return static_cast<double>(mix(key + (number + 1) * golden_ratio) >> 11) * 0x1p-53;
}

void random_box(uint64_t key, double height, double width, const BoxRule& rule, double* box) {
    const double least = std::log(rule.least_aspect), span = std::log(rule.most_aspect) - least;
    const auto tries = static_cast<uint64_t>(rule.tries);
    double wide = 0, high = 0;
    bool fits = false;
    for (uint64_t i = 0; i < tries && !fits; ++i) {
        const double share = rule.least_area + (rule.most_area - rule.least_area) * draw(key, rule.first + i);
        const double area = height * width * share;
        const double aspect = std::exp(least + span * draw(key, rule.first + tries + i));
        wide = std::rint(std::sqrt(area * aspect));
        high = std::rint(std::sqrt(area / aspect));
        fits = wide >= 1 && wide <= width && high >= 1 && high <= height;
    }
    double left = 0, top = 0;
    if (fits) {
        left = std::floor(draw(key, rule.first + 2 * tries) * (width - wide + 1));
        top = std::floor(draw(key, rule.first + 2 * tries + 1) * (height - high + 1));
    } else {
        // The image is longer than any allowed aspect.
        const double aspect = width / height;
        wide = aspect > rule.most_aspect ? std::max(std::rint(height * rule.most_aspect), 1.0) : width;
        high = aspect < rule.least_aspect ? std::max(std::rint(width / rule.least_aspect), 1.0) : height;
        left = std::floor((width - wide) / 2);
        top = std::floor((height - high) / 2);
    }
    box[0] = left;
    box[1] = top;
    box[2] = left + wide;
    box[3] = top + high;
}

}  // namespace batchplant
