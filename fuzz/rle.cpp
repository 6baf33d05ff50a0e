// Run-length masks: any text, as many pixels as its first bytes say; polygons out of the same bytes.

#include "../native/images/rle.hpp"

#include <cstring>
#include <string>

#include "common.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace batchplant;
    if (size < 2) return 0;
    const size_t height = data[0] % 64, width = data[1] % 64;
    rle::Counts counts;
    std::vector<uint8_t> mask(height * width);
    if (rle::parse(data + 2, size - 2, static_cast<int64_t>(height * width), counts)) {
        rle::paint<uint8_t>(counts, height, width, 1, mask.data());
        rle::Counts again;
        const std::string text = rle::text_of(counts);
        const auto* const letters = reinterpret_cast<const uint8_t*>(text.data());
        expect(rle::parse(letters, text.size(), static_cast<int64_t>(height * width), again) && again == counts);
        rle::of_mask(mask.data(), height, width, again);
    }
    std::vector<double> corners((size - 2) / sizeof(double) / 2 * 2);
    if (!corners.empty()) std::memcpy(corners.data(), data + 2, corners.size() * sizeof(double));
    if (rle::of_polygon(corners, height, width, counts)) rle::paint<uint8_t>(counts, height, width, 1, mask.data());
    return 0;
}
