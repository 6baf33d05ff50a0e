#include "png.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

#include "../io/crc.hpp"
#include "png_filters.hpp"

#ifdef BATCHPLANT_LIBDEFLATE
#include <libdeflate.h>
#endif

namespace batchplant {

#ifdef BATCHPLANT_LIBDEFLATE

namespace {

enum class Colour : uint8_t { gray = 0, rgb = 2, palette = 3, gray_alpha = 4, rgb_alpha = 6 };

[[noreturn]] void damaged(const std::string& what) { throw std::invalid_argument("PNG: " + what); }

uint32_t be32(const uint8_t* at) {
    return uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | uint32_t{at[3]};
}

struct Chunk {
    const uint8_t* type;
    const uint8_t* data;
    size_t size;

    bool is(const char* name) const { return std::memcmp(type, name, 4) == 0; }
    bool critical() const { return (type[0] & 0x20) == 0; }
    uint32_t stated_crc() const { return be32(data + size); }
};

void check_crc(const Chunk& chunk, uint32_t crc) {
    if (crc != chunk.stated_crc()) damaged("the checksum of " + std::string(chunk.type, chunk.type + 4) + " is wrong");
}

// One of the seven parts of an interlaced image, or all of another: every dx-th pixel from x0 on, and so on.
struct Pass {
    size_t x0, y0, dx, dy;

    size_t columns(size_t width) const { return width <= x0 ? 0 : (width - x0 + dx - 1) / dx; }
    size_t rows(size_t height) const { return height <= y0 ? 0 : (height - y0 + dy - 1) / dy; }
};

constexpr Pass whole = {0, 0, 1, 1};
constexpr Pass adam7[] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4},
                          {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}};

// Values of 1, 2 or 4 bits to bytes.
void unpack(const uint8_t* row, size_t bits, unsigned factor, uint8_t* dst, size_t count) {
    const unsigned mask = (1u << bits) - 1;
    for (size_t i = 0; i < count; ++i) {
        const size_t at = i * bits;
        const unsigned value = (row[at / 8] >> (8 - bits - at % 8)) & mask;
        dst[i] = static_cast<uint8_t>(value * factor);
    }
}

template <size_t channels>
void look_up(const uint8_t* from, const std::array<uint8_t, 1024>& table, uint8_t* to, size_t count) {
    for (size_t i = 0; i < count; ++i) std::memcpy(to + i * channels, table.data() + 4 * from[i], channels);
}

void add_alpha(const uint8_t* __restrict from, size_t channels, uint8_t* __restrict to, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        for (size_t c = 0; c < 3; ++c) to[4 * i + c] = from[channels * i + (channels == 2 ? 0 : c)];
        to[4 * i + 3] = channels == 2 ? from[2 * i + 1] : 255;
    }
}

struct Inflater {
    libdeflate_decompressor* state = libdeflate_alloc_decompressor();

    Inflater() {
        if (state == nullptr) throw std::bad_alloc();
    }
    ~Inflater() { libdeflate_free_decompressor(state); }
    Inflater(const Inflater&) = delete;
    Inflater& operator=(const Inflater&) = delete;
};

}  // namespace

struct PngDecoder::State {
    size_t width = 0, height = 0, bits = 0, stored = 0;  // stored: values of a pixel
    Colour colour = Colour::gray;
    bool interlaced = false, transparent = false;
    bool converted = false;               // the pixels are not the samples
    std::array<uint8_t, 1024> palette{};  // red, green, blue, alpha
    std::vector<Chunk> parts;             // of the packed pixels

    Inflater inflater;
    Scratch joined, filtered, samples, pixels, lines;

    void open(const uint8_t* data, size_t size, uint64_t most_pixels);
    PixelMode mode() const;
    PixelView decode(PixelMode mode, const Region& need);

private:
    Chunk next_chunk(const uint8_t* data, size_t size, size_t at) const;
    void read_header(const Chunk& chunk, uint64_t most_pixels);
    void read_palette(const Chunk& chunk);
    void read_transparency(const Chunk& chunk, bool has_palette);
    size_t line_bytes(size_t columns) const { return (columns * stored * bits + 7) / 8; }
    size_t filtered_size() const;
    void inflate();
    void unfilter_rows(size_t rows);
    void unfilter_passes(size_t rows);
    const uint8_t* convert(PixelMode mode, size_t rows);
};

Chunk PngDecoder::State::next_chunk(const uint8_t* data, size_t size, size_t at) const {
    constexpr size_t around = 12;  // length, type, checksum
    if (size - at < around) damaged("it is cut short");
    const size_t length = be32(data + at);
    const Chunk chunk{data + at + 4, data + at + 8, length};
    for (size_t i = 0; i < 4; ++i) {
        const unsigned letter = chunk.type[i] | 0x20u;
        if (letter < 'a' || letter > 'z') damaged("there is no chunk at byte " + std::to_string(at));
    }
    if (length > size - at - around) damaged("it is cut short");
    return chunk;
}

void PngDecoder::State::open(const uint8_t* data, size_t size, uint64_t most_pixels) {
    constexpr size_t signature = 8;
    if (size < signature || std::memcmp(data, "\x89PNG\r\n\x1A\n", signature) != 0)
        damaged("it does not begin with the signature");
    parts.clear();
    transparent = false;
    bool has_palette = false, ended = false;
    for (size_t at = signature; !ended;) {
        const Chunk chunk = next_chunk(data, size, at);
        const bool first = at == signature, pixels_done = !parts.empty();
        at += 12 + chunk.size;
        if (first != chunk.is("IHDR")) damaged("the header is not where it should be");
        if (chunk.is("IDAT")) {
            // Its checksum is taken when it is unpacked. Parts with other chunks between them are none.
            if (pixels_done && parts.back().data + parts.back().size + 12 != chunk.data) throw NotNative();
            parts.push_back(chunk);
            continue;
        }
        check_crc(chunk, crc32(chunk.type, chunk.size + 4));
        if (first) {
            read_header(chunk, most_pixels);
        } else if (chunk.is("IEND")) {
            ended = true;
        } else if (chunk.is("PLTE")) {
            if (has_palette || pixels_done) throw NotNative();
            has_palette = true;
            if (colour == Colour::palette) read_palette(chunk);
        } else if (chunk.is("tRNS")) {
            if (transparent || pixels_done) throw NotNative();
            read_transparency(chunk, has_palette);
        } else if (chunk.critical() || chunk.is("acTL")) {
            throw NotNative();
        }
    }
    if (parts.empty()) damaged("it has no pixels");
    if (colour == Colour::palette && !has_palette) damaged("it has no palette");
    uint64_t packed = 0;
    for (const Chunk& part : parts) packed += part.size;
    // 258 bytes for 2 bits: nothing unpacks to more.
    constexpr uint64_t most_gain = 1032;
    if (filtered_size() > packed * most_gain) {
        damaged("the header claims " + std::to_string(width) + " x " + std::to_string(height) + " pixels, which its " +
                std::to_string(packed) + " bytes cannot hold");
    }
}

void PngDecoder::State::read_header(const Chunk& chunk, uint64_t most_pixels) {
    if (chunk.size != 13) damaged("the header is damaged");
    width = be32(chunk.data);
    height = be32(chunk.data + 4);
    bits = chunk.data[8];
    const unsigned type = chunk.data[9], packing = chunk.data[10], filtering = chunk.data[11], lacing = chunk.data[12];
    constexpr size_t longest_side = 0x7FFFFFFF;
    const bool plausible = width > 0 && height > 0 && width <= longest_side && height <= longest_side && type <= 6 &&
                           type != 1 && type != 5 && packing == 0 && filtering == 0 && lacing <= 1;
    // Depths of every colour type, a bit for each.
    constexpr unsigned depths[] = {0x10116, 0, 0x10100, 0x116, 0x10100, 0, 0x10100};
    if (!plausible || bits > 16 || (depths[type] >> bits & 1) == 0) damaged("the header is damaged");
    if (bits == 16) throw NotNative();
    constexpr uint64_t most_ever = uint64_t{1} << 40;
    check_pixels(width, height, std::min(most_pixels, most_ever));
    colour = static_cast<Colour>(type);
    constexpr size_t values[] = {1, 0, 3, 1, 2, 0, 4};
    stored = values[type];
    interlaced = lacing == 1;
}

void PngDecoder::State::read_palette(const Chunk& chunk) {
    if (chunk.size == 0 || chunk.size % 3 != 0 || chunk.size > 768) throw NotNative();
    // Indices behind its end are black.
    palette.fill(0);
    for (size_t i = 0; i < 256; ++i) {
        if (3 * i < chunk.size) std::memcpy(palette.data() + 4 * i, chunk.data + 3 * i, 3);
        palette[4 * i + 3] = 255;
    }
}

void PngDecoder::State::read_transparency(const Chunk& chunk, bool has_palette) {
    // For gray and RGB it names one transparent colour; the requested mode decides whether that matters.
    const bool fits =
        colour == Colour::palette ? has_palette && chunk.size <= 256 : chunk.size == (colour == Colour::gray ? 2 : 6);
    if (!fits || colour == Colour::gray_alpha || colour == Colour::rgb_alpha) throw NotNative();
    transparent = true;
    if (colour != Colour::palette) return;
    for (size_t i = 0; i < chunk.size; ++i) palette[4 * i + 3] = chunk.data[i];
}

PixelMode PngDecoder::State::mode() const {
    switch (colour) {
        case Colour::gray: return PixelMode::l;
        case Colour::rgb: return PixelMode::rgb;
        case Colour::palette: return transparent ? PixelMode::rgba : PixelMode::rgb;
        case Colour::gray_alpha: return PixelMode::la;
        case Colour::rgb_alpha: return PixelMode::rgba;
    }
    return PixelMode::unknown;
}

// A byte for the filter before each row.
size_t PngDecoder::State::filtered_size() const {
    if (!interlaced) return height * (line_bytes(width) + 1);
    size_t sum = 0;
    for (const Pass& pass : adam7) {
        const size_t columns = pass.columns(width);
        if (columns > 0) sum += pass.rows(height) * (line_bytes(columns) + 1);
    }
    return sum;
}

void PngDecoder::State::inflate() {
    const uint8_t* packed = parts[0].data;
    size_t size = parts[0].size;
    if (parts.size() == 1) {
        check_crc(parts[0], crc32(parts[0].type, size + 4));
    } else {
        size = 0;
        for (const Chunk& part : parts) size += part.size;
        uint8_t* to = joined.room(size);
        packed = to;
        for (const Chunk& part : parts) {
            std::memcpy(to, part.data, part.size);
            check_crc(part, crc32(part.type, part.size + 4));
            to += part.size;
        }
    }
    const size_t want = filtered_size();
    uint8_t* to = filtered.room(want + filter_overrun);
    size_t have = 0;
    const auto result = libdeflate_zlib_decompress(inflater.state, packed, size, to, want, &have);
    // More than the header says: libpng and Pillow look away.
    if (result == LIBDEFLATE_INSUFFICIENT_SPACE) throw NotNative();
    if (result != LIBDEFLATE_SUCCESS) damaged("its pixels cannot be unpacked");
    if (have != want) damaged("it has fewer pixels than its header says");
}

void check_filter(unsigned kind) {
    if (kind > 4) damaged("there is no filter " + std::to_string(kind));
}

// Whole bytes, row after row: straight to their place.
void PngDecoder::State::unfilter_rows(size_t rows) {
    const size_t line = line_bytes(width);
    uint8_t* dst = samples.room(line * rows + overrun);
    uint8_t* zeros = lines.room(line + filter_overrun);
    std::memset(zeros, 0, line);
    const uint8_t* above = zeros;
    for (size_t y = 0; y < rows; ++y) {
        const uint8_t* row = filtered.data() + y * (line + 1);
        check_filter(row[0]);
        unfilter(row[0], row + 1, above, dst, line, stored);
        above = dst;
        dst += line;
    }
}

// Few bits, or interlaced: a row at a time.
void PngDecoder::State::unfilter_passes(size_t rows) {
    const size_t line = line_bytes(width) + filter_overrun;
    // Levels of few bits fill the range of a byte; indices stay what they are.
    const unsigned factor = colour == Colour::palette ? 1 : 255 / ((1u << bits) - 1);
    uint8_t* dst = samples.room(width * rows * stored + overrun);
    uint8_t* above = lines.room(2 * line + width);
    uint8_t* current = above + line;
    uint8_t* const bytes = current + line;
    const size_t step = std::max<size_t>(1, stored * bits / 8);
    const uint8_t* row = filtered.data();
    for (size_t number = 0; number < (interlaced ? 7 : 1); ++number) {
        const Pass& pass = interlaced ? adam7[number] : whole;
        const size_t columns = pass.columns(width), length = line_bytes(columns);
        if (columns == 0) continue;
        std::memset(above, 0, length);
        for (size_t y = pass.y0; y < rows; y += pass.dy, row += length + 1) {
            check_filter(row[0]);
            unfilter(row[0], row + 1, above, current, length, step);
            const uint8_t* values = current;
            if (bits < 8) {
                unpack(current, bits, factor, bytes, columns);
                values = bytes;
            }
            uint8_t* to = dst + (y * width + pass.x0) * stored;
            for (size_t x = 0; x < columns; ++x) std::memcpy(to + x * pass.dx * stored, values + x * stored, stored);
            std::swap(above, current);
        }
    }
}

// The samples as pixels of the mode that is asked for.
const uint8_t* PngDecoder::State::convert(PixelMode wanted, size_t rows) {
    const size_t channels = channels_of(wanted), count = rows * width;
    converted = channels != stored;
    if (!converted) return samples.data();
    uint8_t* to = pixels.room(count * channels + overrun);
    if (stored > 1) {
        add_alpha(samples.data(), stored, to, count);
        return to;
    }
    std::array<uint8_t, 1024> grays;
    if (colour == Colour::gray) {
        for (size_t i = 0; i < 256; ++i) {
            const auto level = static_cast<uint8_t>(i);
            const uint8_t second = channels == 2 ? 255 : level;
            const uint8_t entry[] = {level, second, level, 255};
            std::memcpy(grays.data() + 4 * i, entry, 4);
        }
    }
    const auto& table = colour == Colour::gray ? grays : palette;
    switch (channels) {
        case 2: look_up<2>(samples.data(), table, to, count); break;
        case 3: look_up<3>(samples.data(), table, to, count); break;
        default: look_up<4>(samples.data(), table, to, count);
    }
    return to;
}

PixelView PngDecoder::State::decode(PixelMode wanted, const Region& need) {
    const size_t rows = interlaced ? height : std::min(height, need.bottom);
    inflate();
    if (bits == 8 && !interlaced) {
        unfilter_rows(rows);
    } else {
        unfilter_passes(rows);
    }
    const uint8_t* found = convert(wanted, rows);
    const size_t stride = width * channels_of(wanted);
    return {found, stride, {0, 0, width, rows}, found + rows * stride + overrun};
}

PngDecoder::PngDecoder() : state_(std::make_unique<State>()) {}
PngDecoder::~PngDecoder() = default;

ImageShape PngDecoder::open(const uint8_t* data, size_t size, uint64_t most_pixels) {
    state_->open(data, size, most_pixels);
    return {state_->height, state_->width, channels_of(mode())};
}

PixelMode PngDecoder::mode() const { return state_->mode(); }

bool PngDecoder::can(PixelMode wanted) const {
    if (wanted == mode()) return true;
    if (wanted == PixelMode::palette) return state_->stored == 1;
    return !state_->transparent && converts(mode(), wanted);
}

PixelView PngDecoder::decode(PixelMode wanted, const Region& need) { return state_->decode(wanted, need); }

std::unique_ptr<uint8_t[]> PngDecoder::take() {
    return state_->converted ? state_->pixels.take() : state_->samples.take();
}

std::string png_library() { return "libdeflate " LIBDEFLATE_VERSION_STRING; }

#else

struct PngDecoder::State {};

PngDecoder::PngDecoder() = default;
PngDecoder::~PngDecoder() = default;
ImageShape PngDecoder::open(const uint8_t*, size_t, uint64_t) { throw NotNative(); }
PixelMode PngDecoder::mode() const { return PixelMode::unknown; }
bool PngDecoder::can(PixelMode) const { return false; }
PixelView PngDecoder::decode(PixelMode, const Region&) { throw NotNative(); }
std::unique_ptr<uint8_t[]> PngDecoder::take() { return nullptr; }
std::string png_library() { return "none"; }

#endif

}  // namespace batchplant
