#include "jpeg.hpp"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

// These two assume that <cstdio> came before them.
#include <jpeglib.h>

#include <jerror.h>

namespace batchplant {
namespace {

constexpr uint64_t most_pixels = uint64_t{1} << 28;
// The densest real JPEG (one colour, optimised tables, 4:2:0) holds about 1,000 samples in a byte.
constexpr uint64_t most_samples_per_byte = 4096;
constexpr uint64_t samples_always_allowed = 65536;
// Encoders write some ten scans. Thousands of nearly empty ones would keep a small file decoding for minutes.
constexpr int most_scans = 500;

// libjpeg reports an error by calling error_exit, which must not return. longjmp skips destructors, so the
// rule in this file is: a function that calls setjmp, and every function between it and libjpeg, holds
// only trivially destructible objects. Errors become exceptions one level above, in plain C++.
struct Errors {
    jpeg_error_mgr manager;  // first, so that libjpeg's pointer to it is a pointer to this
    std::jmp_buf jump;
    char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void fail(j_common_ptr codec) {
    auto* errors = reinterpret_cast<Errors*>(codec->err);
    codec->err->format_message(codec, errors->message);
    std::longjmp(errors->jump, 1);
}

void on_message(j_common_ptr codec, int level) {
    const bool is_warning = level < 0;
    if (!is_warning) return;
    switch (codec->err->msg_code) {
        case JWRN_EXTRANEOUS_DATA:
        case JWRN_JFIF_MAJOR:
        case JWRN_ADOBE_XFORM: return;
        // libjpeg would go on with made-up pixels.
        default: fail(codec);
    }
}

void limit_scans(j_common_ptr codec) {
    auto* decoder = reinterpret_cast<j_decompress_ptr>(codec);
    if (decoder->input_scan_number <= most_scans) return;
    auto* errors = reinterpret_cast<Errors*>(codec->err);
    std::snprintf(errors->message, sizeof errors->message, "more than %d scans", most_scans);
    std::longjmp(errors->jump, 1);
}

jpeg_error_mgr* install(Errors& errors) {
    jpeg_std_error(&errors.manager);
    errors.manager.error_exit = fail;
    errors.manager.emit_message = on_message;
    errors.message[0] = '\0';
    return &errors.manager;
}

[[noreturn]] void throw_bad_jpeg(const std::string& reason) { throw std::invalid_argument("bad JPEG: " + reason); }

const char* mode_name(JpegMode mode) { return mode == JpegMode::rgb ? "RGB" : "L"; }

J_COLOR_SPACE output_space(int components, JpegMode mode) {
    switch (components) {
        case 1: return mode == JpegMode::rgb ? JCS_RGB : JCS_GRAYSCALE;
        case 3: return mode == JpegMode::gray ? JCS_GRAYSCALE : JCS_RGB;
        case 4:
            if (mode != JpegMode::stored) {
                throw std::invalid_argument(std::string("this JPEG is CMYK, which cannot be decoded as ") +
                                            mode_name(mode) + ": decode it as stored and convert it");
            }
            return JCS_CMYK;
        default: throw_bad_jpeg(std::to_string(components) + " components, only 1, 3 and 4 have a meaning");
    }
}

size_t channels_of(J_COLOR_SPACE space) { return space == JCS_GRAYSCALE ? 1 : space == JCS_RGB ? 3 : 4; }

void check_size(ImageShape shape, size_t encoded_size) {
    const uint64_t pixels = uint64_t{shape.width} * shape.height;
    const std::string claim = "claims " + std::to_string(shape.width) + " x " + std::to_string(shape.height) + " pixels";
    if (pixels > most_pixels) throw_bad_jpeg(claim + ", more than are allowed (" + std::to_string(most_pixels) + ")");
    if (pixels * shape.channels > most_samples_per_byte * encoded_size + samples_always_allowed) {
        throw_bad_jpeg(claim + " but has only " + std::to_string(encoded_size) + " bytes");
    }
}

}  // namespace

struct JpegDecoder::State {
    jpeg_decompress_struct codec{};
    Errors errors{};
    jpeg_progress_mgr progress{};
    const uint8_t* data;
    size_t size;
    ImageShape shape;

    State(const uint8_t* bytes, size_t count) : data(bytes), size(count) {
        codec.err = install(errors);
        progress.progress_monitor = limit_scans;
    }
    // Safe in every state, also before jpeg_create_decompress.
    ~State() { jpeg_destroy_decompress(&codec); }
    State(const State&) = delete;
    State& operator=(const State&) = delete;

    bool read_header() {
        if (setjmp(errors.jump)) return false;
        jpeg_create_decompress(&codec);
        codec.progress = &progress;
        jpeg_mem_src(&codec, data, static_cast<unsigned long>(size));
        jpeg_read_header(&codec, TRUE);
        return true;
    }

    bool read_pixels(uint8_t* pixels) {
        if (setjmp(errors.jump)) return false;
        // The defaults of libjpeg, named because exact pixels depend on them.
        codec.dct_method = JDCT_ISLOW;
        codec.do_fancy_upsampling = TRUE;
        jpeg_start_decompress(&codec);
        const size_t stride = shape.width * shape.channels;
        while (codec.output_scanline < codec.output_height) {
            constexpr JDIMENSION rows_at_once = 8;
            JSAMPROW rows[rows_at_once];
            const JDIMENSION left = codec.output_height - codec.output_scanline;
            const JDIMENSION count = left < rows_at_once ? left : rows_at_once;
            for (JDIMENSION i = 0; i < count; ++i) rows[i] = pixels + (codec.output_scanline + i) * stride;
            jpeg_read_scanlines(&codec, rows, count);
        }
        jpeg_finish_decompress(&codec);
        return true;
    }
};

JpegDecoder::JpegDecoder(const uint8_t* data, size_t size) : state_(std::make_unique<State>(data, size)) {}

JpegDecoder::~JpegDecoder() = default;

ImageShape JpegDecoder::start(JpegMode mode) {
    State& state = *state_;
    if (!state.read_header()) throw_bad_jpeg(state.errors.message);
    auto& codec = state.codec;
    if (codec.data_precision != 8) throw_bad_jpeg(std::to_string(codec.data_precision) + " bits per sample, not 8");
    codec.out_color_space = output_space(codec.num_components, mode);
    // libjpeg's own buffers follow the stored components, the result those asked for: bound the larger.
    const size_t stored = static_cast<size_t>(codec.num_components);
    const size_t asked = channels_of(codec.out_color_space);
    check_size({codec.image_height, codec.image_width, std::max(stored, asked)}, state.size);
    state.shape = {codec.image_height, codec.image_width, asked};
    return state.shape;
}

void JpegDecoder::decode(uint8_t* pixels) {
    if (!state_->read_pixels(pixels)) throw_bad_jpeg(state_->errors.message);
    if (state_->codec.out_color_space != JCS_CMYK) return;
    // Adobe, whose CMYK files are the ones that exist, stores inks inverted; Pillow gives them back upright too.
    const size_t count = state_->shape.bytes();
    for (size_t i = 0; i < count; ++i) pixels[i] = static_cast<uint8_t>(255 - pixels[i]);
}

namespace {

// libjpeg's own memory destination loses its buffer when encoding fails half-way; this one is
// owned by the caller's frame, which no longjmp crosses.
struct Sink {
    jpeg_destination_mgr manager{};  // first, so that libjpeg's pointer to it is a pointer to this
    uint8_t* data = nullptr;
    size_t capacity = 0;

    Sink() = default;
    ~Sink() { std::free(data); }
    Sink(const Sink&) = delete;
    Sink& operator=(const Sink&) = delete;

    size_t size() const { return capacity - manager.free_in_buffer; }
};

void grow(j_compress_ptr codec) {
    auto* sink = reinterpret_cast<Sink*>(codec->dest);
    constexpr size_t first_capacity = 65536;
    const size_t used = sink->capacity;
    const size_t wanted = used == 0 ? first_capacity : used * 2;
    auto* grown = static_cast<uint8_t*>(std::realloc(sink->data, wanted));
    if (grown == nullptr) ERREXIT1(codec, JERR_OUT_OF_MEMORY, 0);
    sink->data = grown;
    sink->capacity = wanted;
    sink->manager.next_output_byte = grown + used;
    sink->manager.free_in_buffer = wanted - used;
}

boolean grow_when_full(j_compress_ptr codec) {
    grow(codec);
    return TRUE;
}

void nothing_to_flush(j_compress_ptr) {}

struct Encoder {
    jpeg_compress_struct codec{};
    Errors errors{};
    Sink sink;

    Encoder() {
        codec.err = install(errors);
        sink.manager.init_destination = grow;
        sink.manager.empty_output_buffer = grow_when_full;
        sink.manager.term_destination = nothing_to_flush;
    }
    ~Encoder() { jpeg_destroy_compress(&codec); }
    Encoder(const Encoder&) = delete;
    Encoder& operator=(const Encoder&) = delete;

    bool encode(const uint8_t* pixels, ImageShape shape, int quality) {
        if (setjmp(errors.jump)) return false;
        jpeg_create_compress(&codec);
        codec.dest = &sink.manager;
        codec.image_width = static_cast<JDIMENSION>(shape.width);
        codec.image_height = static_cast<JDIMENSION>(shape.height);
        codec.input_components = static_cast<int>(shape.channels);
        codec.in_color_space = shape.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
        jpeg_set_defaults(&codec);
        jpeg_set_quality(&codec, quality, TRUE);
        jpeg_start_compress(&codec, TRUE);
        const size_t stride = shape.width * shape.channels;
        while (codec.next_scanline < codec.image_height) {
            // libjpeg's API lacks const; it only reads the row.
            JSAMPROW row = const_cast<uint8_t*>(pixels + codec.next_scanline * stride);
            jpeg_write_scanlines(&codec, &row, 1);
        }
        jpeg_finish_compress(&codec);
        return true;
    }
};

}  // namespace

std::vector<uint8_t> jpeg_encode(const uint8_t* pixels, ImageShape shape, int quality) {
    if (shape.channels != 1 && shape.channels != 3) {
        throw std::invalid_argument("JPEG takes 1 or 3 channels, not " + std::to_string(shape.channels));
    }
    if (shape.width < 1 || shape.height < 1 || shape.width > JPEG_MAX_DIMENSION || shape.height > JPEG_MAX_DIMENSION) {
        throw std::invalid_argument("JPEG sides go from 1 to " + std::to_string(JPEG_MAX_DIMENSION) + ", not " +
                                    std::to_string(shape.width) + " x " + std::to_string(shape.height));
    }
    if (quality < 1 || quality > 100) {
        throw std::invalid_argument("JPEG quality goes from 1 to 100, not " + std::to_string(quality));
    }
    Encoder encoder;
    if (!encoder.encode(pixels, shape, quality)) {
        throw std::runtime_error(std::string("JPEG encoding failed: ") + encoder.errors.message);
    }
    return {encoder.sink.data, encoder.sink.data + encoder.sink.size()};
}

#define BATCHPLANT_TEXT_(x) #x
#define BATCHPLANT_TEXT(x) BATCHPLANT_TEXT_(x)

std::string jpeg_library() {
#ifdef LIBJPEG_TURBO_VERSION
    return "libjpeg-turbo " BATCHPLANT_TEXT(LIBJPEG_TURBO_VERSION);
#else
    return "libjpeg " BATCHPLANT_TEXT(JPEG_LIB_VERSION);
#endif
}

}  // namespace batchplant
