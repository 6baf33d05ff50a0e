#include <cstdlib>
#include <stdexcept>

#include "jpeg.hpp"
#include "jpeg_errors.hpp"

#include <jerror.h>

namespace batchplant {
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

}  // namespace batchplant
