#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../native/images/jpeg.hpp"
#include "../native/kernels/kernels.hpp"

namespace {

using namespace batchplant;

struct Answer {
    std::string message;  // empty where all went well
    std::vector<uint8_t> pixels;
    size_t warnings = 0;

    bool operator==(const Answer&) const = default;
};

// What is done with the input follows from a hash of it.
struct Choices {
    uint64_t state = 0xCBF29CE484222325u;

    size_t below(size_t limit) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return static_cast<uint32_t>(state >> 32) % limit;
    }
};

Answer decode(JpegDecoder& decoder, const uint8_t* data, size_t size, Choices choices, bool lax, bool& to_the_bottom) {
    Answer answer;
    try {
        decoder.open(data, size);
        JpegOptions options;
        options.mode = choices.below(2) == 0 ? JpegMode::gray : JpegMode::rgb;
        options.strict = choices.below(2) == 0 && !lax;
        const ImageShape shape = decoder.shape(options);
        // Large claims are for fuzz/jpeg.cpp.
        if (shape.height * shape.width > 1 << 16) return answer;
        const size_t kind = choices.below(4);
        size_t left = choices.below(shape.width), right = choices.below(shape.width);
        size_t top = choices.below(shape.height), bottom = choices.below(shape.height);
        if (left > right) std::swap(left, right);
        if (top > bottom) std::swap(top, bottom);
        if (kind == 0) left = top = 0, right = shape.width - 1, bottom = shape.height - 1;
        if (kind == 1) bottom = shape.height - 1;
        ++right, ++bottom;
        to_the_bottom = bottom == shape.height;
        const auto part = decoder.decode_part(left, top, right, bottom, options, 32);
        for (size_t y = top; y < bottom; ++y) {
            const uint8_t* row = part.pixels + (y - part.top) * part.stride + (left - part.left) * shape.channels;
            answer.pixels.insert(answer.pixels.end(), row, row + (right - left) * shape.channels);
        }
    } catch (const std::invalid_argument& error) {
        answer.message = error.what();
    }
    answer.warnings = decoder.warnings();
    return answer;
}

}  // namespace

// The decoder of our own and libjpeg must not differ in anything but this: of a progressive image libjpeg reads also
// what is below the part, and may find something wrong there.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    // Kept as a loader would keep them: every input meets the tables and the rows that the one before it left.
    static JpegDecoder best(best_kernels().jpeg), portable(portable_kernels.jpeg), libjpeg;
    Choices choices;
    for (size_t i = 0; i < size; ++i) choices.state = (choices.state ^ data[i]) * 0x100000001B3u;
    bool to_the_bottom = false;
    const Answer expected = decode(libjpeg, data, size, choices, false, to_the_bottom);
    for (JpegDecoder* ours : {&best, &portable}) {
        const size_t own = ours->baseline_parts();
        const Answer found = decode(*ours, data, size, choices, false, to_the_bottom);
        if (found == expected) continue;
        if (to_the_bottom || ours->baseline_parts() == own) std::abort();
        const Answer lax = decode(libjpeg, data, size, choices, true, to_the_bottom);
        if (lax.message.empty() && lax.pixels != found.pixels) std::abort();
    }
    return 0;
}
