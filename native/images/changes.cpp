#include "changes.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "../kernels/kernels.hpp"
#include "../kernels/lookup.hpp"
#include "../kernels/permute.hpp"

namespace batchplant {
namespace {

using Table = std::array<uint8_t, 256>;
using Histogram = std::array<uint32_t, 256>;

// Between two levels, or beyond; cut, not rounded. Clamped as an integer, so that compilers make vector code of it.
inline uint8_t blended(int32_t from, int32_t to, float ratio) {
    const float level = static_cast<float>(from) + ratio * static_cast<float>(to - from);
    return static_cast<uint8_t>(std::clamp(static_cast<int32_t>(level), 0, 255));
}

inline int32_t luma(const uint8_t* pixel) {
    return (19595 * pixel[0] + 38470 * pixel[1] + 7471 * pixel[2] + 32768) >> 16;
}

template <typename Level>
Table table_of(const Level& level) {
    Table table;
    for (int i = 0; i < 256; ++i) table[static_cast<size_t>(i)] = static_cast<uint8_t>(level(i));
    return table;
}

// Every level by itself, where it is cheaper to compute than to look up.
template <typename Level>
void each_level(const Image& image, const Level& level) {
    const size_t count = image.bytes();
    uint8_t* const pixels = image.pixels;
    for (size_t i = 0; i < count; ++i) pixels[i] = static_cast<uint8_t>(level(pixels[i]));
}

void look_up_all(const Image& image, const Table& table) { look_up(table.data(), image.pixels, image.bytes()); }

// By a table for each of `some` channels.
template <size_t some>
void look_up_channels(uint8_t* pixels, size_t count, size_t channels, const std::array<Table, 3>& tables) {
    constexpr size_t most = 1024;
    std::array<std::array<uint8_t, most>, some> planes;
    for (size_t first = 0; first < count; first += most, pixels += most * channels) {
        const size_t here = std::min(most, count - first);
        for (size_t i = 0; i < here; ++i) {
            for (size_t c = 0; c < some; ++c) planes[c][i] = pixels[i * channels + c];
        }
        for (size_t c = 0; c < some; ++c) look_up(tables[c].data(), planes[c].data(), here);
        for (size_t i = 0; i < here; ++i) {
            for (size_t c = 0; c < some; ++c) pixels[i * channels + c] = planes[c][i];
        }
    }
}

// A table for each channel, made of its histogram.
template <typename Made>
void map_by_histogram(const Image& image, const Made& made) {
    const size_t count = image.height * image.width, channels = image.channels;
    for (size_t first = 0; first < channels; first += 3) {
        const size_t some = std::min<size_t>(3, channels - first);
        // Neighbours are alike: counted apart, they do not wait for each other.
        std::array<Histogram, 3> seen{}, others{};
        uint8_t* pixel = image.pixels + first;
        for (size_t i = 0; i + 1 < count; i += 2, pixel += 2 * channels) {
            for (size_t c = 0; c < some; ++c) {
                ++seen[c][pixel[c]];
                ++others[c][pixel[c + channels]];
            }
        }
        for (size_t c = 0; c < some; ++c) {
            if (count % 2 != 0) ++seen[c][pixel[c]];
            for (size_t level = 0; level < 256; ++level) seen[c][level] += others[c][level];
        }
        std::array<Table, 3> tables;
        for (size_t c = 0; c < some; ++c) tables[c] = made(seen[c]);
        pixel = image.pixels + first;
        // The common number as a constant: loops with it become vector code.
        if (channels == 3) {
            look_up_channels<3>(pixel, count, 3, tables);
        } else {
            for (size_t c = 0; c < some; ++c) look_up_channels<1>(pixel + c, count, channels, {tables[c]});
        }
    }
}

Table stretched(const Histogram& seen) {
    int low = 0, high = 255;
    while (low < 255 && seen[static_cast<size_t>(low)] == 0) ++low;
    while (high > 0 && seen[static_cast<size_t>(high)] == 0) --high;
    if (high <= low) return table_of([](int i) { return i; });
    const double scale = 255.0 / (high - low), offset = -low * scale;
    return table_of([&](int i) { return std::clamp(static_cast<int>(i * scale + offset), 0, 255); });
}

Table equalized(const Histogram& seen) {
    uint64_t total = 0, last = 0;
    for (const uint32_t one : seen) {
        total += one;
        if (one != 0) last = one;
    }
    const uint64_t step = (total - last) / 255;
    if (step == 0) return table_of([](int i) { return i; });
    uint64_t below = step / 2;
    return table_of([&](int i) {
        const uint64_t level = std::min<uint64_t>(below / step, 255);
        below += seen[static_cast<size_t>(i)];
        return level;
    });
}

int32_t mean_gray(const Image& image) {
    const size_t count = image.height * image.width;
    uint64_t sum = 0;
    const uint8_t* pixel = image.pixels;
    if (image.channels == 3) {
        for (size_t y = 0; y < image.height; ++y) {
            uint32_t row = 0;
            for (size_t x = 0; x < image.width; ++x, pixel += 3) row += static_cast<uint32_t>(luma(pixel));
            sum += row;
        }
        return static_cast<int32_t>(static_cast<double>(sum) / static_cast<double>(count) + 0.5);
    }
    for (size_t i = 0; i < image.bytes(); ++i) sum += pixel[i];
    return static_cast<int32_t>(static_cast<double>(sum) / static_cast<double>(image.bytes()) + 0.5);
}

void saturate(const Image& image, float ratio) {
    if (image.channels != 3) return;
    const size_t count = image.height * image.width;
    uint8_t* const pixels = image.pixels;
    for (size_t i = 0; i < count; ++i) {
        uint8_t* const pixel = pixels + 3 * i;
        const int32_t gray = luma(pixel);
        const uint8_t red = blended(gray, pixel[0], ratio), green = blended(gray, pixel[1], ratio);
        const uint8_t blue = blended(gray, pixel[2], ratio);
        pixel[0] = red;
        pixel[1] = green;
        pixel[2] = blue;
    }
}

void add_rows(const uint8_t* __restrict above, const uint8_t* __restrict here, const uint8_t* __restrict below,
              uint16_t* __restrict sums, size_t count) {
    for (size_t x = 0; x < count; ++x) sums[x] = static_cast<uint16_t>(above[x] + here[x] + below[x]);
}

void sharpen_row(const uint8_t* __restrict here, const uint16_t* __restrict sums, size_t channels,
                 uint8_t* __restrict row, size_t count, float ratio) {
    for (size_t x = 0; x < count; ++x) {
        const uint32_t sum = sums[x] + sums[x + channels] + sums[x + 2 * channels] + 4U * here[x];
        // Over 13, rounded, exactly.
        const auto smooth = static_cast<int32_t>(((sum + 6) * 5042) >> 16);
        row[x] = blended(smooth, here[x], ratio);
    }
}

void add_weighted(const uint8_t* __restrict pixels, float weight, float* __restrict sums, size_t count) {
    for (size_t i = 0; i < count; ++i) sums[i] += weight * static_cast<float>(pixels[i]);
}

// The nearest pixel, in the fixed-point arithmetic that Pillow uses, so that ties fall the same way.
template <size_t channels>
void move_nearest(const uint8_t* from, const Image& image, const double* matrix, const uint8_t* fill) {
    const auto fixed = [](double value) { return static_cast<int64_t>(std::floor(value * 65536.0 + 0.5)); };
    const int64_t across_x = fixed(matrix[0]), across_y = fixed(matrix[3]);
    const int64_t down_x = fixed(matrix[1]), down_y = fixed(matrix[4]);
    int64_t first_x = fixed(matrix[2] + matrix[0] * 0.5 + matrix[1] * 0.5);
    int64_t first_y = fixed(matrix[5] + matrix[3] * 0.5 + matrix[4] * 0.5);
    const size_t stride = image.width * channels;
    uint8_t* to = image.pixels;
    // Shifts and shears along rows: what is inside of a row comes from one row, in one piece.
    const bool in_pieces = across_x == 65536 && across_y == 0;
    const auto width = static_cast<int64_t>(image.width), height = static_cast<int64_t>(image.height);
    for (size_t row = 0; row < image.height; ++row, first_x += down_x, first_y += down_y) {
        int64_t x = first_x, y = first_y;
        if (in_pieces) {
            const int64_t at_x = x >> 16, at_y = y >> 16;
            const bool there = at_y >= 0 && at_y < height;
            const auto begin = static_cast<size_t>(there ? std::clamp<int64_t>(-at_x, 0, width) : 0);
            const auto end = static_cast<size_t>(there ? std::clamp<int64_t>(width - at_x, 0, width) : 0);
            for (size_t i = 0; i < begin; ++i) std::memcpy(to + i * channels, fill, channels);
            if (end > begin) {
                const auto first = static_cast<size_t>(at_y * width + at_x) + begin;
                std::memcpy(to + begin * channels, from + first * channels, (end - begin) * channels);
            }
            for (size_t i = std::max(begin, end); i < image.width; ++i) {
                std::memcpy(to + i * channels, fill, channels);
            }
            to += stride;
            continue;
        }
        for (size_t i = 0; i < image.width; ++i, to += channels, x += across_x, y += across_y) {
            const auto at_x = static_cast<uint64_t>(x >> 16), at_y = static_cast<uint64_t>(y >> 16);
            const bool inside = at_x < image.width && at_y < image.height;
            std::memcpy(to, inside ? from + at_y * stride + at_x * channels : fill, channels);
        }
    }
}

}  // namespace

Changer::Changer(const uint8_t* fill, bool smooth) : fill_(fill), smooth_(smooth), decoder_(best_kernels().jpeg) {}

void Changer::apply(const Image& image, Change change, const double* amounts) {
    if (image.bytes() == 0) return;
    const double amount = amounts[0];
    const auto ratio = static_cast<float>(amount);
    switch (change) {
        case Change::none: return;
        case Change::brightness: return look_up_all(image, table_of([&](int i) { return blended(0, i, ratio); }));
        case Change::contrast: {
            const int32_t gray = mean_gray(image);
            return look_up_all(image, table_of([&](int i) { return blended(gray, i, ratio); }));
        }
        case Change::saturation: return saturate(image, ratio);
        case Change::sharpness: return sharpen(image, ratio);
        case Change::posterize: {
            const auto mask = static_cast<uint8_t>(0xFF << (8 - std::clamp(static_cast<int>(amount), 0, 8)));
            return each_level(image, [=](uint8_t level) { return level & mask; });
        }
        case Change::solarize: {
            if (amount > 255) return;
            const auto first = static_cast<uint8_t>(std::ceil(std::max(amount, 0.0)));
            return each_level(image,
                              [=](uint8_t level) { return level < first ? level : static_cast<uint8_t>(~level); });
        }
        case Change::invert: return each_level(image, [](uint8_t level) { return static_cast<uint8_t>(~level); });
        case Change::autocontrast: return map_by_histogram(image, stretched);
        case Change::equalize: return map_by_histogram(image, equalized);
        case Change::jpeg: return encode(image, static_cast<int>(amount));
        case Change::affine: return move(image, amounts);
    }
}

void Changer::mix(const Image& image, size_t chains, size_t steps, const uint8_t* codes, const double* amounts,
                  const float* weights) {
    const size_t count = image.bytes();
    sums_.resize(count);
    changed_.resize(count);
    float* const sums = sums_.data();
    std::fill_n(sums, count, 0.0F);
    add_weighted(image.pixels, weights[0], sums, count);
    for (size_t chain = 0; chain < chains; ++chain) {
        std::copy_n(image.pixels, count, changed_.begin());
        const Image changed{changed_.data(), image.height, image.width, image.channels};
        for (size_t step = 0; step < steps; ++step, ++codes, amounts += amounts_of_change) {
            apply(changed, static_cast<Change>(*codes), amounts);
        }
        add_weighted(changed_.data(), weights[chain + 1], sums, count);
    }
    for (size_t i = 0; i < count; ++i) {
        image.pixels[i] = static_cast<uint8_t>(std::clamp(static_cast<int32_t>(sums[i]), 0, 255));
    }
}

// Away from, or towards, the mean of the pixels around, in which the pixel itself counts five times. The outermost
// pixels stay.
void Changer::sharpen(const Image& image, float ratio) {
    const size_t channels = image.channels, stride = image.width * channels;
    if (image.height < 3 || image.width < 3) return;
    rows_.resize(4 * stride);
    // Rows as they were; the sums of three rows.
    uint8_t *above = rows_.data(), *here = above + stride;
    auto* const sums = reinterpret_cast<uint16_t*>(rows_.data() + 2 * stride);
    std::memcpy(above, image.pixels, stride);
    for (size_t y = 1; y + 1 < image.height; ++y) {
        uint8_t* const row = image.pixels + y * stride;
        std::memcpy(here, row, stride);
        add_rows(above, here, row + stride, sums, stride);
        sharpen_row(here + channels, sums, channels, row + channels, stride - 2 * channels, ratio);
        std::swap(above, here);
    }
}

void Changer::encode(const Image& image, int quality) {
    const auto data = jpeg_encode(image.pixels, {image.height, image.width, image.channels}, quality);
    decoder_.open(data.data(), data.size());
    const auto part = decoder_.decode_part(0, 0, image.width, image.height, {}, 0);
    const size_t stride = image.width * image.channels;
    for (size_t y = 0; y < image.height; ++y) {
        std::memcpy(image.pixels + y * stride, part.pixels + (y - part.top) * part.stride - part.left * image.channels,
                    stride);
    }
}

void Changer::move(const Image& image, const double* matrix) {
    if (image.channels > 4) throw std::invalid_argument("images that are moved have one to four channels");
    if (!std::all_of(matrix, matrix + amounts_of_change, [](double one) { return std::abs(one) < 1e9; })) {
        throw std::invalid_argument("images cannot be moved that far");
    }
    rows_.assign(image.pixels, image.pixels + image.bytes());
    // Whole pixels are not blended with any other.
    const bool shift = matrix[0] == 1 && matrix[1] == 0 && matrix[3] == 0 && matrix[4] == 1 &&
                       std::floor(matrix[2]) == matrix[2] && std::floor(matrix[5]) == matrix[5];
    if (!smooth_ || shift) {
        constexpr decltype(&move_nearest<1>) moves[] = {move_nearest<1>, move_nearest<2>, move_nearest<3>,
                                                        move_nearest<4>};
        return moves[image.channels - 1](rows_.data(), image, matrix, fill_);
    }
    const double inverse[] = {matrix[0], matrix[1], matrix[2], matrix[3], matrix[4], matrix[5], 0, 0, 1};
    const int32_t size[] = {static_cast<int32_t>(image.height), static_cast<int32_t>(image.width)};
    WarpJob job;
    job.source = rows_.data();
    job.out = image.pixels;
    job.images = job.canvases = 1;
    job.channels = image.channels;
    job.source_height = job.height = image.height;
    job.source_width = job.width = image.width;
    job.inverse = inverse;
    job.sizes = size;
    job.fill = fill_;
    warp(job, 0, warping_);
}

void add_noise(uint8_t* values, size_t count, uint64_t key, float sigma, const float* quantiles) {
    constexpr size_t lanes = 5, choices = 4096;
    // Levels are whole numbers: what is added to them is rounded once for all of them.
    std::array<int16_t, choices> steps;
    for (size_t i = 0; i < choices; ++i) {
        steps[i] = static_cast<int16_t>(std::clamp(std::floor(sigma * quantiles[i] + 0.5F), -255.0F, 255.0F));
    }
    const auto noisy = [&](uint8_t level, uint64_t bits) {
        return static_cast<uint8_t>(std::clamp(level + steps[bits & (choices - 1)], 0, 255));
    };
    const size_t words = count / lanes;
    for (size_t word = 0; word < words; ++word, values += lanes) {
        const uint64_t bits = mix(key + (word + 1) * golden_ratio);
        for (size_t lane = 0; lane < lanes; ++lane) values[lane] = noisy(values[lane], bits >> (12 * lane));
    }
    const uint64_t bits = mix(key + (words + 1) * golden_ratio);
    for (size_t lane = 0; lane < count % lanes; ++lane) values[lane] = noisy(values[lane], bits >> (12 * lane));
}

}  // namespace batchplant
