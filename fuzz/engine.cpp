#include "../native/images/engine.hpp"

#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

namespace {

using namespace batchplant;

// What is done with the input follows from a hash of it: were it a part of the input, no image would be whole.
class Choices {
public:
    Choices(const uint8_t* data, size_t size) {
        for (size_t i = 0; i < size; ++i) state_ = (state_ ^ data[i]) * 0x100000001B3u;
    }
    size_t below(size_t limit) { return next() % limit; }
    double part() { return static_cast<double>(next()) / 0xFFFFFFFFu; }

private:
    uint32_t next() {
        state_ = state_ * 6364136223846793005u + 1442695040888963407u;
        return static_cast<uint32_t>(state_ >> 32);
    }
    uint64_t state_ = 0xCBF29CE484222325u;
};

// The part of a raw image that a box needs: planned and copied, or, where the plan was changed into one that does not
// fit, refused.
void gather_window(Engine& engine, Choices& choices, const Buffer& base, const int32_t* shape, const double* box) {
    const int64_t start = choices.below(4) == 0 ? static_cast<int64_t>(choices.below(64)) : 0;
    int64_t plan[static_cast<size_t>(WindowRow::count)];
    const auto row = [&plan](WindowRow which) { return plan + static_cast<size_t>(which); };
    const double support = static_cast<double>(choices.below(3));
    const int64_t room = plan_windows({&start, shape, box, support, 7, 9, 1}, plan);
    if (choices.below(4) == 0) plan[choices.below(static_cast<size_t>(WindowRow::count))] += 1 << choices.below(30);
    const int32_t number = 0;
    std::vector<uint8_t> place(static_cast<size_t>(room));
    const Windows windows{&number,
                          row(WindowRow::start),
                          row(WindowRow::line),
                          row(WindowRow::rows),
                          row(WindowRow::width),
                          row(WindowRow::place),
                          1};
    engine.gather({base}, windows, place.data(), place.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    // One thread and all sets of loops, kept as a loader would keep them: every input meets the tables and the
    // scratch memory that the one before it left.
    static const std::vector<std::unique_ptr<Engine>> engines = [] {
        std::vector<std::unique_ptr<Engine>> made;
        for (const Kernels* one : all_kernels())
            made.push_back(std::make_unique<Engine>(1, std::vector<int>(), 0, *one));
        return made;
    }();

    Choices choices(data, size);
    DecodeJob job;
    job.bases = {{data, size}};
    const int32_t base = 0;
    const int64_t start = 0, length = static_cast<int64_t>(size);
    const auto whole = [](double value) { return static_cast<double>(static_cast<int>(value)); };

    // Raw pixels: as many rows of some width as there are bytes for, or a shape that does not fit.
    const bool raw = choices.below(3) == 0;
    const auto channels = static_cast<int32_t>(1 + choices.below(4)),
               width = static_cast<int32_t>(1 + choices.below(40));
    const int64_t rows = length / (channels * width);
    const int32_t shape[3] = {static_cast<int32_t>(rows), width, channels};
    const int64_t fitting = rows * channels * width;
    job.base = &base;
    job.start = &start;
    job.size = raw && choices.below(8) != 0 ? &fitting : &length;
    job.shape = raw ? shape : nullptr;

    // The seeds are 24 pixels wide and 17 high; some boxes reach further.
    double box[4] = {choices.part() * 25, choices.part() * 18, choices.part() * 25, choices.part() * 18};
    if (box[0] > box[2]) std::swap(box[0], box[2]);
    if (box[1] > box[3]) std::swap(box[1], box[3]);
    if (choices.below(2) == 0) {
        for (double& edge : box) edge = whole(edge);
    }
    if (choices.below(3) != 0) job.box = box;
    const auto flip = static_cast<uint8_t>(choices.below(2));
    job.flip = &flip;
    job.filter = static_cast<Filter>(choices.below(4));
    job.dct = choices.below(2) == 0 ? JpegDct::accurate : JpegDct::fast;
    job.fast_scale = choices.below(2) == 0;
    job.strict = choices.below(2) == 0;
    job.output.images = 1;
    job.output.height = 1 + choices.below(50);
    job.output.width = 1 + choices.below(50);
    job.output.channels = raw || choices.below(3) == 0 ? static_cast<size_t>(channels) : choices.below(2) == 0 ? 1 : 3;
    if (job.output.channels == 1 && choices.below(2) == 0) job.mode = PixelMode::palette;
    const auto orientation = static_cast<uint8_t>(choices.below(10));
    if (choices.below(2) == 0) job.orient = &orientation;
    job.most_pixels = 1 << 20;
    job.output.type = static_cast<PixelType>(choices.below(3));
    job.output.layout = choices.below(2) == 0 ? Layout::nhwc : Layout::nchw;
    if (job.output.type != PixelType::uint8) job.output.normalise(nullptr, nullptr);

    // Memory of exactly this size, so that the sanitizer sees a write of even one byte too far.
    const size_t bytes = job.output.image_size();
    std::vector<uint8_t> expected;
    std::vector<int32_t> status;
    for (const auto& engine : engines) {
        std::vector<uint8_t> result(bytes);
        job.output.data = result.data();
        const std::vector<int32_t> told = engine->decode(job).status;
        if (engine == engines.front()) {
            status = told;
            expected = std::move(result);
        } else if (told != status || result != expected) {
            std::abort();
        }
    }
    if (raw) gather_window(*engines.front(), choices, {data, size}, shape, box);
    return 0;
}
