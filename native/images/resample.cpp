#include "resample.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace batchplant {
namespace {

// --- weights ------------------------------------------------------------------------------------------------

// Pillow's filters, in the very order of operations it uses.
struct Bilinear {
    static constexpr double support = 1.0;
    double operator()(double x) const {
        x = std::fabs(x);
        return x < 1.0 ? 1.0 - x : 0.0;
    }
};

struct Bicubic {
    static constexpr double support = 2.0;
    double operator()(double x) const {
        constexpr double a = -0.5;
        x = std::fabs(x);
        if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
        if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
        return 0.0;
    }
};

int32_t pillow_fixed(double weight) {
    const double scaled = weight * (1 << weight_bits);
    return static_cast<int32_t>(weight < 0 ? scaled - 0.5 : scaled + 0.5);
}

// Zeros at the ends cost a row or a tap each and change nothing.
void append_trimmed(const std::vector<double>& kernel, double total, size_t first, Coverage<int32_t>& weights) {
    auto& fixed = weights.weight;
    const size_t begin = fixed.size();
    for (const double weight : kernel) {
        const int32_t next = pillow_fixed(total != 0.0 ? weight / total : weight);
        if (next == 0 && fixed.size() == begin && &weight != &kernel.back()) {
            ++first;
        } else {
            fixed.push_back(next);
        }
    }
    while (fixed.size() > begin + 1 && fixed.back() == 0) fixed.pop_back();
    weights.first.push_back(first);
    weights.begin.push_back(begin);
}

template <typename Function>
void pillow_weights(double from, double to, size_t source, size_t result, Function filter, std::vector<double>& kernel,
                    Coverage<int32_t>& weights) {
    // Pillow passes boxes in single precision.
    const auto begin = static_cast<float>(from);
    const auto end = static_cast<float>(to);
    const double scale = static_cast<double>(end - begin) / static_cast<double>(result);
    const double filter_scale = std::max(scale, 1.0);
    const double support = Function::support * filter_scale;
    const double inverse = 1.0 / filter_scale;
    weights.clear();
    for (size_t i = 0; i < result; ++i) {
        const double center = static_cast<double>(begin) + (static_cast<double>(i) + 0.5) * scale;
        const double low = center - support + 0.5;
        const auto first = low > 0 ? std::min(static_cast<size_t>(low), source - 1) : 0;
        const auto last = std::min(static_cast<size_t>(std::max(center + support + 0.5, 0.0)), source);
        double total = 0;
        kernel.clear();
        for (size_t k = first; k < std::max(last, first + 1); ++k) {
            kernel.push_back(filter((static_cast<double>(k) - center + 0.5) * inverse));
            total += kernel.back();
        }
        append_trimmed(kernel, total, first, weights);
    }
    weights.begin.push_back(weights.weight.size());
}

// Rounded so that the weights of a result add up to one, however small each of them is.
void fix_weights(const Coverage<double>& covered, int bits, Coverage<int32_t>& weights) {
    weights.clear();
    weights.first = covered.first;
    weights.begin = covered.begin;
    const double one = 1 << bits;
    for (size_t i = 0; i < covered.first.size(); ++i) {
        double so_far = 0;
        int32_t given = 0;
        for (size_t k = covered.begin[i]; k < covered.begin[i + 1]; ++k) {
            so_far += covered.weight[k];
            const bool last = k + 1 == covered.begin[i + 1];
            const int32_t target = last ? 1 << bits : static_cast<int32_t>(so_far * one + 0.5);
            weights.weight.push_back(target - given);
            given = target;
        }
    }
}

// If results are thinner than this, 14 bits are too few for the weights of the pixels under each.
constexpr double most_under_one = 62;

bool is_whole(double value) { return value == std::floor(value); }

// OpenCV's INTER_AREA where a side grows: the left neighbour and the share of the right one.
struct LinearStep {
    size_t first;
    int share;
};

class LinearSteps {
public:
    LinearSteps(double start, double length, size_t source, size_t result)
        : start_(start),
          slip_(start == 0 ? 0.0 : 1e-6),
          inverse_(static_cast<double>(result) / length),
          scale_(1.0 / inverse_),
          source_(source) {}

    LinearStep operator[](size_t i) const {
        const auto first = static_cast<size_t>(start_ + static_cast<double>(i) * scale_ + slip_);
        if (first + 1 >= source_) return {source_ - 1, 0};
        const double right = static_cast<double>(first + 1) - start_;
        auto share = static_cast<float>((static_cast<double>(i) + 1) - right * inverse_);
        share = share <= 0 ? 0.0f : share - static_cast<float>(static_cast<int>(share));
        // Halves to even, as OpenCV rounds.
        const auto fixed = static_cast<int>(std::nearbyintf(share * static_cast<float>(1 << linear_bits)));
        if (fixed == 1 << linear_bits) return {first + 1, 0};
        return {first, fixed};
    }

private:
    double start_;
    // Boxes that begin within a pixel come from divisions, and OpenCV has none: what is so near to the next pixel is
    // meant to be there.
    double slip_;
    double inverse_, scale_;
    size_t source_;
};

}  // namespace

// --- planning -----------------------------------------------------------------------------------------------

bool Resampler::Side::copies() const { return is_whole(from) && to - from == static_cast<double>(result); }

Region Resampler::plan(const Task& task) {
    task_ = task;
    const Box& box = task.box;
    Side columns{box.x0, box.x1, task.source_width, task.width, task.channels, task.filter, task.flip, Method::copy};
    Side rows{box.y0, box.y1, task.source_height, task.height, 1, task.filter, false, Method::copy};
    if (columns.copies() && rows.copies()) {
        method_ = Method::copy;
        const auto left = static_cast<size_t>(box.x0), top = static_cast<size_t>(box.y0);
        region_ = {left, top, left + task.width, top + task.height};
        return region_;
    }
    const double shrink_x = box.width() / static_cast<double>(task.width);
    const double shrink_y = box.height() / static_cast<double>(task.height);
    if (task.filter == Filter::nearest) {
        method_ = Method::nearest;
    } else if (task.filter != Filter::area || std::max(shrink_x, shrink_y) > most_under_one) {
        method_ = Method::bytes;
    } else {
        method_ = shrink_x < 1 || shrink_y < 1 ? Method::linear : Method::fine;
    }
    columns.method = rows.method = method_;
    if (!columns_known_ || columns != columns_) {
        columns_known_ = false;
        plan_columns(columns);
        columns_ = columns;
        columns_known_ = true;
    }
    if (!rows_known_ || rows != rows_) {
        rows_known_ = false;
        plan_rows(rows);
        rows_ = rows;
        rows_known_ = true;
    }
    region_ = {left_, top_, right_, bottom_};
    return region_;
}

namespace {

// Positions of results in the source, the way Pillow's NEAREST adds them up.
void nearest_pixels(double from, double to, size_t source, size_t result, std::vector<int32_t>& at) {
    const auto begin = static_cast<float>(from);
    const auto end = static_cast<float>(to);
    const double scale = static_cast<double>(end - begin) / static_cast<double>(result);
    double position = static_cast<double>(begin) + scale * 0.5;
    at.resize(result);
    for (size_t i = 0; i < result; ++i, position += scale) {
        at[i] = static_cast<int32_t>(std::min(static_cast<size_t>(std::max(position, 0.0)), source - 1));
    }
}

void cover_box(double from, double to, size_t result, Coverage<double>& covered, size_t& begin, size_t& end) {
    const double whole = std::floor(from);
    begin = static_cast<size_t>(whole);
    end = static_cast<size_t>(std::ceil(to));
    cover(from - whole, to - from, end - begin, result, covered);
}

}  // namespace

void Resampler::plan_columns(const Side& side) {
    switch (side.method) {
        case Method::copy: return;
        case Method::bytes: return set_taps(side);
        case Method::fine: return set_fine_taps(side);
        case Method::linear: return set_linear_taps(side);
        case Method::nearest: break;
    }
    nearest_pixels(side.from, side.to, side.source, side.result, columns_at_);
    left_ = static_cast<size_t>(columns_at_.front());
    right_ = static_cast<size_t>(columns_at_.back()) + 1;
    for (int32_t& at : columns_at_) at -= static_cast<int32_t>(left_);
    if (side.flip) std::reverse(columns_at_.begin(), columns_at_.end());
}

void Resampler::set_linear_taps(const Side& side) {
    left_ = static_cast<size_t>(std::floor(side.from));
    right_ = static_cast<size_t>(std::ceil(side.to));
    fine_taps_.width = side.result;
    fine_taps_.channels = side.channels;
    fine_taps_.count = 2;
    fine_taps_.linear = true;
    fine_taps_.first.resize(side.result);
    fine_taps_.weight.resize(2 * side.result);
    const LinearSteps steps(side.from - static_cast<double>(left_), side.to - side.from, right_ - left_, side.result);
    for (size_t i = 0; i < side.result; ++i) {
        const size_t x = side.flip ? side.result - 1 - i : i;
        const LinearStep step = steps[i];
        fine_taps_.first[x] = static_cast<int32_t>(step.first);
        fine_taps_.weight[2 * x] = static_cast<int16_t>((1 << linear_bits) - step.share);
        fine_taps_.weight[2 * x + 1] = static_cast<int16_t>(step.share);
    }
    kernels_.pack(fine_taps_);
}

namespace {

// From the edge of what is needed, which it finds out.
void make_relative(Coverage<int32_t>& weights, size_t& begin, size_t& end) {
    begin = weights.first.front();
    end = 0;
    for (size_t i = 0; i < weights.first.size(); ++i) {
        begin = std::min(begin, weights.first[i]);
        end = std::max(end, weights.first[i] + weights.count(i));
    }
    for (size_t& first : weights.first) first -= begin;
}

size_t most_taps(const Coverage<int32_t>& weights) {
    size_t most = 0;
    for (size_t i = 0; i < weights.first.size(); ++i) most = std::max(most, weights.count(i));
    return most;
}

// Lays the weights of each result out at a fixed distance from each other. Near the right edge the taps start
// earlier, so that none lies outside; the first then weigh nothing.
template <typename Weight>
void lay_out(const Coverage<int32_t>& from, size_t source, size_t taps, size_t stride, bool flip,
             std::vector<int32_t>& first, std::vector<Weight>& weight) {
    const size_t result = from.first.size();
    first.resize(result);
    weight.assign(result * stride, 0);
    for (size_t i = 0; i < result; ++i) {
        const size_t x = flip ? result - 1 - i : i;
        const size_t start = std::min(from.first[i], source - taps);
        first[x] = static_cast<int32_t>(start);
        Weight* to = weight.data() + x * stride + (from.first[i] - start);
        for (size_t k = from.begin[i]; k < from.begin[i + 1]; ++k) *to++ = static_cast<Weight>(from.weight[k]);
    }
}

}  // namespace

void Resampler::set_fine_taps(const Side& side) {
    cover_box(side.from, side.to, side.result, covered_, left_, right_);
    fix_weights(covered_, fine_weight_bits, across_);
    fine_taps_.width = side.result;
    fine_taps_.channels = side.channels;
    fine_taps_.count = most_taps(across_);
    fine_taps_.linear = false;
    lay_out(across_, right_ - left_, fine_taps_.count, fine_taps_.count, side.flip, fine_taps_.first,
            fine_taps_.weight);
    kernels_.pack(fine_taps_);
}

void Resampler::set_taps(const Side& side) {
    if (side.filter == Filter::area) {
        cover_box(side.from, side.to, side.result, covered_, left_, right_);
        fix_weights(covered_, weight_bits, across_);
    } else {
        if (side.filter == Filter::bilinear) {
            pillow_weights(side.from, side.to, side.source, side.result, Bilinear(), kernel_, across_);
        } else {
            pillow_weights(side.from, side.to, side.source, side.result, Bicubic(), kernel_, across_);
        }
        make_relative(across_, left_, right_);
    }
    taps_.width = side.result;
    taps_.channels = side.channels;
    taps_.count = most_taps(across_);
    taps_.stride = (taps_.count + 3) / 4 * 4;
    lay_out(across_, right_ - left_, taps_.count, taps_.stride, side.flip, taps_.first, taps_.weight);
}

void Resampler::plan_rows(const Side& side) {
    if (side.filter == Filter::nearest) {
        nearest_pixels(side.from, side.to, side.source, side.result, rows_at_);
        top_ = static_cast<size_t>(rows_at_.front());
        bottom_ = static_cast<size_t>(rows_at_.back()) + 1;
        for (int32_t& at : rows_at_) at -= static_cast<int32_t>(top_);
        return;
    }
    if (side.method == Method::linear) {
        top_ = static_cast<size_t>(std::floor(side.from));
        bottom_ = static_cast<size_t>(std::ceil(side.to));
        down_.first.resize(side.result);
        down_.weight.resize(side.result);
        down_.begin.resize(side.result + 1);
        const LinearSteps steps(side.from - static_cast<double>(top_), side.to - side.from, bottom_ - top_,
                                side.result);
        for (size_t i = 0; i < side.result; ++i) {
            const LinearStep step = steps[i];
            down_.first[i] = step.first;
            down_.weight[i] = step.share;
        }
        most_rows_ = 2;
        return;
    }
    if (side.filter == Filter::area) {
        cover_box(side.from, side.to, side.result, covered_, top_, bottom_);
        fix_weights(covered_, side.method == Method::fine ? fine_weight_bits : weight_bits, down_);
        most_rows_ = most_taps(down_);
        if (side.method == Method::fine) down_fine_.assign(down_.weight.begin(), down_.weight.end());
        return;
    }
    if (side.filter == Filter::bilinear) {
        pillow_weights(side.from, side.to, side.source, side.result, Bilinear(), kernel_, down_);
    } else {
        pillow_weights(side.from, side.to, side.source, side.result, Bicubic(), kernel_, down_);
    }
    most_rows_ = most_taps(down_);
    make_relative(down_, top_, bottom_);
}

// --- running ------------------------------------------------------------------------------------------------

void Resampler::run(const PixelView& source, const RowWriter& writer) {
    // Counted from the planned region's corner from here on.
    PixelView view = source;
    view.pixels +=
        (region_.top - source.region.top) * source.stride + (region_.left - source.region.left) * task_.channels;
    switch (method_) {
        case Method::copy: return copy(view, writer);
        case Method::nearest: return pick(view, writer);
        case Method::bytes: return blend_bytes(view, writer);
        case Method::fine: return blend_fine(view, writer);
        case Method::linear: return blend_linear(view, writer);
    }
}

// The row, with room after it for kernels that read whole registers: itself, or where the memory ends a copy.
const uint8_t* Resampler::readable_row(const PixelView& source, size_t row) {
    const uint8_t* pixels = source.pixels + row * source.stride;
    const size_t size = region_.width() * task_.channels;
    if (static_cast<size_t>(source.end - pixels) >= size + overrun) return pixels;
    if (padded_.size() < size + overrun) padded_.resize(size + overrun);
    std::memcpy(padded_.data(), pixels, size);
    return padded_.data();
}

void Resampler::copy(const PixelView& source, const RowWriter& writer) {
    const size_t size = task_.width * task_.channels;
    if (writer.direct() && !task_.flip && source.stride == size) {
        std::memcpy(writer.row(0), source.pixels, size * task_.height);
        return;
    }
    for (size_t y = 0; y < task_.height; ++y) {
        const uint8_t* row = source.pixels + y * source.stride;
        if (task_.flip) {
            kernels_.reverse(row, writer.row(y), task_.width, task_.channels);
        } else {
            std::memcpy(writer.row(y), row, size);
        }
        writer.finish(y);
    }
}

namespace {

template <size_t channels>
void pick_row(const uint8_t* row, const int32_t* at, uint8_t* dst, size_t width) {
    // Three bytes go as four, the last of which the next pixel overwrites; only the last pixel has no next.
    constexpr size_t at_once = channels == 3 ? 4 : channels;
    for (size_t x = 0; x + 1 < width; ++x, dst += channels) {
        std::memcpy(dst, row + static_cast<size_t>(at[x]) * channels, at_once);
    }
    std::memcpy(dst, row + static_cast<size_t>(at[width - 1]) * channels, channels);
}

}  // namespace

void Resampler::pick(const PixelView& source, const RowWriter& writer) {
    using Pick = void (*)(const uint8_t*, const int32_t*, uint8_t*, size_t);
    constexpr Pick picks[] = {pick_row<1>, pick_row<2>, pick_row<3>, pick_row<4>};
    for (size_t y = 0; y < task_.height; ++y) {
        const uint8_t* row = readable_row(source, static_cast<size_t>(rows_at_[y]));
        picks[task_.channels - 1](row, columns_at_.data(), writer.row(y), task_.width);
        writer.finish(y);
    }
}

template <typename Value>
void Resampler::start(Ring<Value>& ring) const {
    const size_t length = ring_length();
    if (ring.values.size() < most_rows_ * length) ring.values.resize(most_rows_ * length);
    if (ring.rows.size() < most_rows_) ring.rows.resize(most_rows_);
    ring.next = 0;
}

// Sees to it that the source rows under result row y have gone through across(), and points ring.rows at them.
// As no more are kept than one result needs, they mostly stay in the fastest cache.
template <typename Value, typename Across>
void Resampler::make_rows(const PixelView& source, size_t y, Ring<Value>& ring, Across across) {
    const size_t length = ring_length();
    const size_t first = down_.first[y];
    const size_t count = method_ == Method::linear ? std::min<size_t>(2, region_.height() - first) : down_.count(y);
    const auto place = [&](size_t row) { return ring.values.data() + row % most_rows_ * length; };
    for (ring.next = std::max(ring.next, first); ring.next < first + count; ++ring.next) {
        across(readable_row(source, ring.next), place(ring.next));
    }
    for (size_t k = 0; k < count; ++k) ring.rows[k] = place(first + k);
}

void Resampler::blend_bytes(const PixelView& source, const RowWriter& writer) {
    const size_t count = task_.width * task_.channels;
    const bool unchanged = columns_.copies() && !task_.flip;
    start(bytes_);
    for (size_t y = 0; y < task_.height; ++y) {
        if (unchanged) {
            const uint8_t* row = source.pixels + down_.first[y] * source.stride;
            for (size_t k = 0; k < down_.count(y); ++k) bytes_.rows[k] = row + k * source.stride;
        } else {
            make_rows(source, y, bytes_, [&](const uint8_t* row, uint8_t* to) { kernels_.to_bytes(row, taps_, to); });
        }
        kernels_.blend_bytes(bytes_.rows.data(), down_.weight.data() + down_.begin[y], down_.count(y), writer.row(y),
                             count);
        writer.finish(y);
    }
}

void Resampler::blend_fine(const PixelView& source, const RowWriter& writer) {
    const size_t count = task_.width * task_.channels;
    start(fines_);
    for (size_t y = 0; y < task_.height; ++y) {
        make_rows(source, y, fines_, [&](const uint8_t* row, int16_t* to) { kernels_.to_fine(row, fine_taps_, to); });
        kernels_.blend_fine(fines_.rows.data(), down_fine_.data() + down_.begin[y], down_.count(y), writer.row(y),
                            count);
        writer.finish(y);
    }
}

void Resampler::blend_linear(const PixelView& source, const RowWriter& writer) {
    const size_t count = task_.width * task_.channels;
    start(fines_);
    for (size_t y = 0; y < task_.height; ++y) {
        make_rows(source, y, fines_, [&](const uint8_t* row, int16_t* to) { kernels_.to_fine(row, fine_taps_, to); });
        const int share = down_.weight[y];
        const auto& rows = fines_.rows;
        kernels_.blend_linear(rows[0], share == 0 ? rows[0] : rows[1], share, writer.row(y), count);
        writer.finish(y);
    }
}

}  // namespace batchplant
