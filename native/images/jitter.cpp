#include "jitter.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace batchplant {
namespace {

// Pixels at a time: they stay in the fastest cache from one pass to the next.
constexpr size_t chunk = 2048;

uint32_t luma(uint32_t red, uint32_t green, uint32_t blue) {  // as Pillow's "L"
    return (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16;
}

// The level that each becomes, by brightness and contrast; a NaN leaves it as it is.
struct Levels {
    std::array<uint8_t, 256> of;

    Levels() {
        for (size_t i = 0; i < of.size(); ++i) of[i] = static_cast<uint8_t>(i);
    }

    // Towards one level, or away from it.
    void blend(float ratio, float level) {
        if (std::isnan(ratio)) return;
        const float rest = (1 - ratio) * level;
        for (uint8_t& value : of)
            value = static_cast<uint8_t>(std::clamp(ratio * static_cast<float>(value) + rest, 0.0f, 255.0f));
    }

    void apply(uint8_t* values, size_t count) const {
        for (size_t i = 0; i < count; ++i) values[i] = of[values[i]];
    }
};

uint64_t luma_sum(const uint8_t* pixels, size_t count) {
    uint32_t sum = 0;
    for (size_t i = 0; i < count; ++i) sum += luma(pixels[3 * i], pixels[3 * i + 1], pixels[3 * i + 2]);
    return sum;
}

// The functions below compute in 16 bits, so that a register holds many pixels; intermediate names keep it so.

// A number as an integer times a power of two, for ratios of any size.
struct Fixed {
    int16_t value;
    int bits;

    explicit Fixed(float number) {
        bits = 14;
        while (bits > 0 && std::fabs(number) * static_cast<float>(1 << bits) > 32767.0f) --bits;
        const float scaled = std::round(number * static_cast<float>(1 << bits));
        value = static_cast<int16_t>(std::clamp(scaled, -32767.0f, 32767.0f));
    }
};

int16_t clamped(int16_t value, int16_t low, int16_t high) {
    value = value < low ? low : value;
    return value > high ? high : value;
}

int16_t away_from(int16_t gray, int16_t value, int16_t ratio, int bits) {
    const int32_t product = static_cast<int32_t>(static_cast<int16_t>(value - gray)) * ratio;
    const int32_t moved = gray + (product >> bits);
    return static_cast<int16_t>(moved < 0 ? 0 : moved > 255 ? 255 : moved);
}

// Fractions of levels, in bits, while a hue is turned: six times the largest spread still fits 16 bits.
constexpr int fine = 4;

// Share of a channel in the spread between the lowest and highest channel of its pixel; all are fine.
int16_t part_of(int16_t spread, int16_t far) { return clamped(far, 0, spread); }

int16_t apart(int16_t one, int16_t other) { return static_cast<int16_t>(one > other ? one - other : other - one); }

// Sectors of the circle are not divided by the spread: all is multiplied with it instead.
template <bool saturation, bool hue>
void recolour(uint8_t* pixels, size_t count, const Fixed& ratio, const Fixed& turn) {
    const int16_t by = ratio.value, sectors = turn.value;
    const int bits = ratio.bits, shift = turn.bits - fine;
    const int32_t rounding = 1 << (shift - 1);
    for (size_t i = 0; i < count; ++i) {
        int16_t red = pixels[3 * i], green = pixels[3 * i + 1], blue = pixels[3 * i + 2];
        if constexpr (saturation) {
            const auto gray = static_cast<int16_t>(
                luma(static_cast<uint16_t>(red), static_cast<uint16_t>(green), static_cast<uint16_t>(blue)));
            red = away_from(gray, red, by, bits);
            green = away_from(gray, green, by, bits);
            blue = away_from(gray, blue, by, bits);
        }
        if constexpr (hue) {
            const int16_t more = red > green ? red : green, less = red > green ? green : red;
            const int16_t high = more > blue ? more : blue, low = less < blue ? less : blue;
            const auto spread = static_cast<int16_t>(high - low);
            const auto green_blue = static_cast<int16_t>(green - blue), blue_red = static_cast<int16_t>(blue - red);
            const auto red_green = static_cast<int16_t>(red - green);
            const auto second = static_cast<int16_t>(2 * spread + blue_red);
            const auto third = static_cast<int16_t>(4 * spread + red_green);
            const int16_t later = high == green ? second : third;
            const int16_t at = high == red ? green_blue : later;
            const auto turned = static_cast<int16_t>((static_cast<int32_t>(spread) * sectors + rounding) >> shift);
            const auto wide = static_cast<int16_t>(spread << fine);
            const auto circle = static_cast<int16_t>(6 * wide);
            auto sector = static_cast<int16_t>((at << fine) + turned);
            sector = sector < 0 ? static_cast<int16_t>(sector + circle) : sector;
            sector = sector >= circle ? static_cast<int16_t>(sector - circle) : sector;
            const auto two = static_cast<int16_t>(2 * wide), three = static_cast<int16_t>(3 * wide);
            const auto four = static_cast<int16_t>(4 * wide);
            const int16_t r = part_of(wide, static_cast<int16_t>(apart(sector, three) - wide));
            const int16_t g = part_of(wide, static_cast<int16_t>(two - apart(sector, two)));
            const int16_t b = part_of(wide, static_cast<int16_t>(two - apart(sector, four)));
            constexpr int16_t half = 1 << (fine - 1);
            red = static_cast<int16_t>(low + static_cast<int16_t>(static_cast<int16_t>(r + half) >> fine));
            green = static_cast<int16_t>(low + static_cast<int16_t>(static_cast<int16_t>(g + half) >> fine));
            blue = static_cast<int16_t>(low + static_cast<int16_t>(static_cast<int16_t>(b + half) >> fine));
        }
        pixels[3 * i] = static_cast<uint8_t>(red);
        pixels[3 * i + 1] = static_cast<uint8_t>(green);
        pixels[3 * i + 2] = static_cast<uint8_t>(blue);
    }
}

}  // namespace

void jitter(uint8_t* image, size_t pixels, const Jitter& amounts) noexcept {
    const bool contrast = !std::isnan(amounts.contrast), saturation = !std::isnan(amounts.saturation);
    const bool hue = !std::isnan(amounts.hue);
    Levels levels;
    levels.blend(amounts.brightness, 0);
    if (contrast) {
        uint64_t sum = 0;
        for (size_t at = 0; at < pixels; at += chunk) {
            const size_t count = std::min(chunk, pixels - at);
            if (!std::isnan(amounts.brightness)) levels.apply(image + 3 * at, 3 * count);
            sum += luma_sum(image + 3 * at, count);
        }
        levels = Levels();
        levels.blend(amounts.contrast, static_cast<float>(static_cast<double>(sum) / static_cast<double>(pixels)));
    }
    const bool looked_up = contrast || !std::isnan(amounts.brightness);
    const Fixed ratio(saturation ? amounts.saturation : 1), turn(hue ? 6 * amounts.hue : 0);
    for (size_t at = 0; at < pixels; at += chunk) {
        const size_t count = std::min(chunk, pixels - at);
        uint8_t* here = image + 3 * at;
        if (looked_up) levels.apply(here, 3 * count);
        if (saturation && hue) {
            recolour<true, true>(here, count, ratio, turn);
        } else if (saturation) {
            recolour<true, false>(here, count, ratio, turn);
        } else if (hue) {
            recolour<false, true>(here, count, ratio, turn);
        }
    }
}

}  // namespace batchplant
