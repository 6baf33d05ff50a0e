#include "probe.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

namespace batchplant {
namespace {

// Every read of untrusted bytes goes through here. A read past the end gives zero and marks the view
// as failed, so parsers stay straight-line code and ask once, at the end, whether all they saw was real.
class View {
public:
    View(const uint8_t* data, size_t size) : data_(data), size_(size) {}

    size_t size() const { return size_; }
    bool ok() const { return ok_; }

    uint32_t u8(uint64_t at) { return has(at, 1) ? data_[at] : 0; }
    uint32_t le16(uint64_t at) { return has(at, 2) ? data_[at] | data_[at + 1] << 8 : 0; }
    uint32_t be16(uint64_t at) { return has(at, 2) ? data_[at] << 8 | data_[at + 1] : 0; }
    uint32_t le24(uint64_t at) { return le16(at) | u8(at + 2) << 16; }
    uint32_t le32(uint64_t at) { return le16(at) | le16(at + 2) << 16; }
    uint32_t be32(uint64_t at) { return be16(at) << 16 | be16(at + 2); }

    bool starts_with(const char* magic, size_t length, size_t at = 0) const {
        return at <= size_ && length <= size_ - at && std::memcmp(data_ + at, magic, length) == 0;
    }

private:
    bool has(uint64_t at, uint64_t count) {
        const bool inside = at <= size_ && count <= size_ - at;
        ok_ = ok_ && inside;
        return inside;
    }

    const uint8_t* data_;
    size_t size_;
    bool ok_ = true;
};

struct Layout {
    uint64_t width = 0;
    uint64_t height = 0;
    PixelMode mode = PixelMode::unknown;
    uint32_t bits = 8;
};

using Parsed = std::optional<Layout>;

PixelMode jpeg_mode(uint32_t components) {
    switch (components) {
        case 1: return PixelMode::l;
        case 3: return PixelMode::rgb;
        case 4: return PixelMode::cmyk;
        default: return PixelMode::unknown;
    }
}

bool is_jpeg_frame(uint32_t marker) {
    // C4, C8 and CC share the frame markers' range but are tables, a reserved code and a setting.
    return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

bool is_jpeg_marker_without_length(uint32_t marker) { return marker == 0x01 || (marker >= 0xD0 && marker <= 0xD8); }

Parsed parse_jpeg(View view) {
    uint64_t at = 2;
    while (at < view.size()) {
        // Like libjpeg, skip stray bytes in front of a marker and the fill bytes that may pad it.
        while (at < view.size() && view.u8(at) != 0xFF) ++at;
        while (at < view.size() && view.u8(at) == 0xFF) ++at;
        const uint32_t marker = view.u8(at++);
        if (!view.ok() || marker == 0xD9 || marker == 0xDA) return {};
        if (marker == 0x00 || is_jpeg_marker_without_length(marker)) continue;
        const uint32_t length = view.be16(at);
        if (length < 2) return {};
        if (is_jpeg_frame(marker)) {
            Layout layout{view.be16(at + 5), view.be16(at + 3), jpeg_mode(view.u8(at + 7)), view.u8(at + 2)};
            return view.ok() ? Parsed(layout) : Parsed();
        }
        at += length;
    }
    return {};
}

// Header segments of a JPEG, up to its first scan.
struct JpegSegments {
    uint64_t frame = 0, scan = 0;  // where they are, behind their length; 0 for none
    uint64_t end = 2;              // of the last one
    bool plain = true;             // one baseline frame, nothing between segments
    bool jfif = false;
    std::optional<uint32_t> adobe;  // how it says that colours are stored
};

JpegSegments jpeg_segments(View& view) {
    JpegSegments found;
    while (view.ok() && found.scan == 0) {
        const uint64_t at = found.end;
        if (view.u8(at) != 0xFF) break;
        const uint32_t marker = view.u8(at + 1);
        const uint32_t length = view.be16(at + 2);
        // Neither the end of the image nor a byte that fills: such files are for a decoder that knows them.
        if (length < 2 || marker < 0xC0 || marker == 0xD9 || marker == 0xFF) break;
        if (is_jpeg_marker_without_length(marker)) break;
        const uint64_t inside = at + 4;
        if (is_jpeg_frame(marker)) {
            found.plain = found.plain && marker == 0xC0 && found.frame == 0;
            found.frame = inside;
        }
        if (marker == 0xE0 && view.starts_with("JFIF", 5, inside)) found.jfif = true;
        if (marker == 0xEE && length >= 14 && view.starts_with("Adobe", 5, inside)) found.adobe = view.u8(inside + 11);
        if (marker == 0xDA) found.scan = inside;
        found.end = at + 2 + length;
    }
    return found;
}

// As libjpeg tells it of three components.
bool is_ycbcr(View& view, const JpegSegments& segments) {
    if (segments.jfif) return true;
    if (segments.adobe) return *segments.adobe != 0;
    const auto id = [&](uint64_t n) { return view.u8(segments.frame + 6 + 3 * n); };
    return !(id(0) == 'R' && id(1) == 'G' && id(2) == 'B');
}

PixelMode png_mode(uint32_t colour_type, uint32_t bits) {
    switch (colour_type) {
        case 0: return bits == 1 ? PixelMode::bilevel : PixelMode::l;
        case 2: return PixelMode::rgb;
        case 3: return PixelMode::palette;
        case 4: return PixelMode::la;
        case 6: return PixelMode::rgba;
        default: return PixelMode::unknown;
    }
}

Parsed parse_png(View view) {
    if (!view.starts_with("IHDR", 4, 12)) return {};
    const uint32_t bits = view.u8(24);
    Layout layout{view.be32(16), view.be32(20), png_mode(view.u8(25), bits), bits};
    return view.ok() ? Parsed(layout) : Parsed();
}

Parsed parse_webp_lossy(View view) {
    const bool has_start_code = view.u8(23) == 0x9D && view.u8(24) == 0x01 && view.u8(25) == 0x2A;
    if (!has_start_code) return {};
    // The two top bits of each are a scaling hint for displays, not part of the size.
    Layout layout{view.le16(26) & 0x3FFF, view.le16(28) & 0x3FFF, PixelMode::rgb, 8};
    return view.ok() ? Parsed(layout) : Parsed();
}

Parsed parse_webp_lossless(View view) {
    if (view.u8(20) != 0x2F) return {};
    const uint32_t packed = view.le32(21);
    const bool alpha = (packed >> 28) & 1;
    Layout layout{(packed & 0x3FFF) + 1, ((packed >> 14) & 0x3FFF) + 1, alpha ? PixelMode::rgba : PixelMode::rgb, 8};
    return view.ok() ? Parsed(layout) : Parsed();
}

Parsed parse_webp_extended(View view) {
    const bool alpha = view.u8(20) & 0x10;
    Layout layout{view.le24(24) + 1, view.le24(27) + 1, alpha ? PixelMode::rgba : PixelMode::rgb, 8};
    return view.ok() ? Parsed(layout) : Parsed();
}

Parsed parse_webp(View view) {
    if (view.starts_with("VP8 ", 4, 12)) return parse_webp_lossy(view);
    if (view.starts_with("VP8L", 4, 12)) return parse_webp_lossless(view);
    if (view.starts_with("VP8X", 4, 12)) return parse_webp_extended(view);
    return {};
}

Parsed parse_gif(View view) {
    Layout layout{view.le16(6), view.le16(8), PixelMode::palette, 8};
    return view.ok() ? Parsed(layout) : Parsed();
}

PixelMode bmp_mode(uint32_t bits_per_pixel) {
    switch (bits_per_pixel) {
        case 1: return PixelMode::bilevel;
        case 4:
        case 8: return PixelMode::palette;
        case 16:
        case 24: return PixelMode::rgb;
        case 32: return PixelMode::rgba;
        default: return PixelMode::unknown;
    }
}

Parsed parse_bmp(View view) {
    constexpr uint32_t os2_header_size = 12;
    const uint32_t header_size = view.le32(14);
    Layout layout;
    uint32_t bits_per_pixel = 0;
    if (header_size == os2_header_size) {
        layout.width = view.le16(18);
        layout.height = view.le16(20);
        bits_per_pixel = view.le16(24);
    } else {
        // A negative height means that the rows are stored top-down.
        const auto height = static_cast<int64_t>(static_cast<int32_t>(view.le32(22)));
        layout.width = view.le32(18);
        layout.height = static_cast<uint64_t>(height < 0 ? -height : height);
        bits_per_pixel = view.le16(28);
    }
    layout.mode = bmp_mode(bits_per_pixel);
    layout.bits = bits_per_pixel >= 24 ? 8 : bits_per_pixel == 16 ? 5 : bits_per_pixel;
    return view.ok() ? Parsed(layout) : Parsed();
}

class TiffDirectory {
public:
    TiffDirectory(View view, bool big_endian) : view_(view), big_endian_(big_endian) { offset_ = u32(4); }

    bool ok() const { return view_.ok(); }
    uint32_t entries() { return u16(offset_); }
    uint32_t tag(uint32_t entry) { return u16(entry_at(entry)); }

    uint32_t value(uint32_t entry) {
        constexpr uint32_t type_short = 3;
        const uint64_t at = entry_at(entry);
        if (u16(at + 2) != type_short) return u32(at + 8);
        // Up to two shorts fit into the entry itself; more of them lie where it points.
        const bool elsewhere = u32(at + 4) > 2;
        return u16(elsewhere ? u32(at + 8) : at + 8);
    }

private:
    uint32_t u16(uint64_t at) { return big_endian_ ? view_.be16(at) : view_.le16(at); }
    uint32_t u32(uint64_t at) { return big_endian_ ? view_.be32(at) : view_.le32(at); }
    uint64_t entry_at(uint32_t entry) const { return offset_ + 2 + uint64_t{entry} * 12; }

    View view_;
    bool big_endian_;
    uint64_t offset_ = 0;
};

PixelMode tiff_mode(uint32_t photometric, uint32_t samples, uint32_t bits) {
    constexpr uint32_t rgb = 2, palette = 3, separated = 5, ycbcr = 6;
    switch (photometric) {
        case 0:
        case 1:
            if (samples == 2) return PixelMode::la;
            if (samples != 1) return PixelMode::unknown;
            return bits == 1 ? PixelMode::bilevel : PixelMode::l;
        case rgb: return samples == 3 ? PixelMode::rgb : samples == 4 ? PixelMode::rgba : PixelMode::unknown;
        case palette: return PixelMode::palette;
        case separated: return PixelMode::cmyk;
        case ycbcr: return PixelMode::rgb;
        default: return PixelMode::unknown;
    }
}

Parsed parse_tiff(View view, bool big_endian) {
    TiffDirectory directory(view, big_endian);
    uint32_t width = 0, height = 0, bits = 1, samples = 1, photometric = UINT32_MAX;
    const uint32_t entries = directory.entries();
    for (uint32_t entry = 0; entry < entries && directory.ok(); ++entry) {
        switch (directory.tag(entry)) {
            case 256: width = directory.value(entry); break;
            case 257: height = directory.value(entry); break;
            case 258: bits = directory.value(entry); break;
            case 262: photometric = directory.value(entry); break;
            case 277: samples = directory.value(entry); break;
            default: break;
        }
    }
    Layout layout{width, height, tiff_mode(photometric, samples, bits), bits};
    return directory.ok() ? Parsed(layout) : Parsed();
}

Encoding find_encoding(const View& view) {
    if (view.starts_with("\xFF\xD8\xFF", 3)) return Encoding::jpeg;
    if (view.starts_with("\x89PNG\r\n\x1A\n", 8)) return Encoding::png;
    if (view.starts_with("RIFF", 4) && view.starts_with("WEBP", 4, 8)) return Encoding::webp;
    if (view.starts_with("GIF87a", 6) || view.starts_with("GIF89a", 6)) return Encoding::gif;
    if (view.starts_with("BM", 2)) return Encoding::bmp;
    if (view.starts_with("II*\0", 4) || view.starts_with("MM\0*", 4)) return Encoding::tiff;
    return Encoding::unknown;
}

Parsed parse(Encoding encoding, const View& view) {
    switch (encoding) {
        case Encoding::jpeg: return parse_jpeg(view);
        case Encoding::png: return parse_png(view);
        case Encoding::webp: return parse_webp(view);
        case Encoding::gif: return parse_gif(view);
        case Encoding::bmp: return parse_bmp(view);
        case Encoding::tiff: return parse_tiff(view, view.starts_with("MM", 2));
        case Encoding::unknown: return {};
    }
    return {};
}

}  // namespace

ImageHeader probe_image(const uint8_t* data, size_t size) {
    const View view(data, size);
    ImageHeader header;
    header.encoding = find_encoding(view);
    const Parsed layout = parse(header.encoding, view);
    constexpr uint64_t largest = std::numeric_limits<int32_t>::max();
    const bool plausible = layout && layout->width > 0 && layout->height > 0 && layout->width <= largest &&
                           layout->height <= largest && layout->bits <= 64;
    if (!plausible) return header;
    header.width = static_cast<int32_t>(layout->width);
    header.height = static_cast<int32_t>(layout->height);
    header.mode = layout->mode;
    header.bits = static_cast<int32_t>(layout->bits);
    return header;
}

DeviceJpeg device_jpeg(const uint8_t* data, size_t size, int64_t height, int64_t width) {
    View view(data, size);
    if (!view.starts_with("\xFF\xD8", 2) || !view.starts_with("\xFF\xD9", 2, size - 2)) return {};
    const JpegSegments segments = jpeg_segments(view);
    const uint64_t frame = segments.frame, scan = segments.scan;
    if (!segments.plain || frame == 0 || scan == 0 || segments.end > size) return {};
    constexpr uint32_t components = 3;
    if (view.u8(frame) != 8 || view.u8(frame + 5) != components || view.u8(scan) != components) return {};
    if (view.be16(frame + 1) != height || view.be16(frame + 3) != width || height <= 0 || width <= 0) return {};
    if (!is_ycbcr(view, segments)) return {};
    const auto sampling = [&](uint64_t n) { return view.u8(frame + 7 + 3 * n); };
    const uint32_t first = sampling(0);
    const bool usual = first == 0x11 || first == 0x21 || first == 0x22;
    if (!usual || sampling(1) != 0x11 || sampling(2) != 0x11 || !view.ok()) return {};
    return {static_cast<size_t>(segments.end), first >> 4, first & 15};
}

}  // namespace batchplant
