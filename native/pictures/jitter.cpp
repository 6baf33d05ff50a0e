#include "jitter.hpp"

#include <algorithm>
#include <cmath>

namespace batchplant {
namespace {

// Pixels at a time: their planes stay in the fastest cache.
constexpr size_t chunk = 1024;

float cut(float value) {
    value = value < 0 ? 0.0f : value;
    value = value > 255 ? 255.0f : value;
    return static_cast<float>(static_cast<int>(value));
}

// As Pillow's "L".
float luma(float red, float green, float blue) {
    return static_cast<float>(
        (19595 * static_cast<int>(red) + 38470 * static_cast<int>(green) + 7471 * static_cast<int>(blue) + 32768) >> 16);
}

struct Planes {
    float *red, *green, *blue;
};

void load(const uint8_t* from, size_t count, const Planes& to) {
    for (size_t i = 0; i < count; ++i) {
        to.red[i] = from[3 * i];
        to.green[i] = from[3 * i + 1];
        to.blue[i] = from[3 * i + 2];
    }
}

void store(const Planes& from, size_t count, uint8_t* to) {
    for (size_t i = 0; i < count; ++i) {
        to[3 * i] = static_cast<uint8_t>(static_cast<int>(from.red[i]));
        to[3 * i + 1] = static_cast<uint8_t>(static_cast<int>(from.green[i]));
        to[3 * i + 2] = static_cast<uint8_t>(static_cast<int>(from.blue[i]));
    }
}

// Towards one level, or away from it.
void blend(float* plane, size_t count, float ratio, float level) {
    const float rest = (1 - ratio) * level;
    for (size_t i = 0; i < count; ++i) plane[i] = cut(ratio * plane[i] + rest);
}

void blend(const Planes& planes, size_t count, float ratio, float level) {
    for (float* plane : {planes.red, planes.green, planes.blue}) blend(plane, count, ratio, level);
}

uint64_t luma_sum(const Planes& planes, size_t count) {
    uint32_t sum = 0;
    for (size_t i = 0; i < count; ++i) {
        sum += static_cast<uint32_t>(luma(planes.red[i], planes.green[i], planes.blue[i]));
    }
    return sum;
}

void saturate(const Planes& planes, size_t count, float ratio) {
    for (size_t i = 0; i < count; ++i) {
        const float red = planes.red[i], green = planes.green[i], blue = planes.blue[i];
        const float gray = (1 - ratio) * luma(red, green, blue);
        planes.red[i] = cut(ratio * red + gray);
        planes.green[i] = cut(ratio * green + gray);
        planes.blue[i] = cut(ratio * blue + gray);
    }
}

// Of the six sectors of the circle; from 0 to 6.
float wrapped(float sector) {
    sector = sector < 0 ? sector + 6 : sector;
    return sector >= 6 ? sector - 6 : sector;
}

float channel_of(float sector, float n, float high, float spread) {
    const float k = wrapped(sector + n);
    float part = k < 4 - k ? k : 4 - k;
    part = part < 0 ? 0.0f : part;
    part = part > 1 ? 1.0f : part;
    return static_cast<float>(static_cast<int>(high - spread * part + 0.5f));
}

void turn_hue(const Planes& planes, size_t count, float turn) {
    const float sectors = 6 * turn;
    for (size_t i = 0; i < count; ++i) {
        const float red = planes.red[i], green = planes.green[i], blue = planes.blue[i];
        const float more = red > green ? red : green, less = red > green ? green : red;
        const float high = more > blue ? more : blue, low = less < blue ? less : blue;
        const float spread = high - low;
        const bool reddest = high == red, greenest = high == green;
        const float above = reddest ? green - blue : greenest ? blue - red : red - green;
        const float from = reddest ? 0.0f : greenest ? 2.0f : 4.0f;
        const float sector = wrapped(from + above / (spread == 0 ? 1.0f : spread) + sectors);
        planes.red[i] = channel_of(sector, 5, high, spread);
        planes.green[i] = channel_of(sector, 3, high, spread);
        planes.blue[i] = channel_of(sector, 1, high, spread);
    }
}

}  // namespace

void jitter(uint8_t* picture, size_t pixels, const Jitter& amounts, JitterScratch& scratch) {
    scratch.red.resize(chunk);
    scratch.green.resize(chunk);
    scratch.blue.resize(chunk);
    const Planes planes{scratch.red.data(), scratch.green.data(), scratch.blue.data()};
    const bool contrast = !std::isnan(amounts.contrast);
    float mean = 0;
    if (contrast) {
        uint64_t sum = 0;
        for (size_t at = 0; at < pixels; at += chunk) {
            const size_t count = std::min(chunk, pixels - at);
            load(picture + 3 * at, count, planes);
            if (!std::isnan(amounts.brightness)) blend(planes, count, amounts.brightness, 0);
            sum += luma_sum(planes, count);
        }
        mean = static_cast<float>(static_cast<double>(sum) / static_cast<double>(std::max<size_t>(pixels, 1)));
    }
    for (size_t at = 0; at < pixels; at += chunk) {
        const size_t count = std::min(chunk, pixels - at);
        load(picture + 3 * at, count, planes);
        if (!std::isnan(amounts.brightness)) blend(planes, count, amounts.brightness, 0);
        if (contrast) blend(planes, count, amounts.contrast, mean);
        if (!std::isnan(amounts.saturation)) saturate(planes, count, amounts.saturation);
        if (!std::isnan(amounts.hue)) turn_hue(planes, count, amounts.hue);
        store(planes, count, picture + 3 * at);
    }
}

}  // namespace batchplant
