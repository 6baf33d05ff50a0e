#include "jpeg.hpp"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

// These two assume that <cstdio> came before them.
#include <jpeglib.h>

#include <jerror.h>

#include "baseline.hpp"
#include "jpeg_errors.hpp"

namespace batchplant {
namespace {

constexpr uint64_t most_pixels = uint64_t{1} << 28;
// The densest real JPEG (one colour, optimised tables, 4:2:0) holds about 1,000 samples in a byte.
constexpr uint64_t most_samples_per_byte = 4096;
constexpr uint64_t samples_always_allowed = 65536;
// Encoders write some ten scans. Thousands of nearly empty ones would keep a small file decoding for minutes.
constexpr int most_scans = 500;

void limit_scans(j_common_ptr codec) {
    auto* decoder = reinterpret_cast<j_decompress_ptr>(codec);
    if (decoder->input_scan_number <= most_scans) return;
    auto* errors = reinterpret_cast<Errors*>(codec->err);
    std::snprintf(errors->message, sizeof errors->message, "more than %d scans", most_scans);
    std::longjmp(errors->jump, 1);
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
    const std::string claim =
        "claims " + std::to_string(shape.width) + " x " + std::to_string(shape.height) + " pixels";
    if (pixels > most_pixels) throw_bad_jpeg(claim + ", more than are allowed (" + std::to_string(most_pixels) + ")");
    if (pixels * shape.channels > most_samples_per_byte * encoded_size + samples_always_allowed) {
        throw_bad_jpeg(claim + " but has only " + std::to_string(encoded_size) + " bytes");
    }
}

// libjpeg keeps Huffman and quantization tables from one image to the next, and has no call to drop them.
// Here they are taken away from it before each image, and their memory given back to it when it asks for
// memory for tables: dropping the pointers alone would lose some memory with every image.
class SpareTables {
public:
    void take(jpeg_decompress_struct& codec) {
        for (auto& table : codec.quant_tbl_ptrs) take(table, quantization_);
        for (auto& table : codec.dc_huff_tbl_ptrs) take(table, huffman_);
        for (auto& table : codec.ac_huff_tbl_ptrs) take(table, huffman_);
    }

    void* give(size_t size) {
        if (size == sizeof(JQUANT_TBL)) return give(quantization_);
        if (size == sizeof(JHUFF_TBL)) return give(huffman_);
        return nullptr;
    }

private:
    template <typename Table>
    struct Shelf {
        Table* tables[2 * NUM_HUFF_TBLS + NUM_QUANT_TBLS];
        size_t count = 0;
    };

    template <typename Table>
    static void take(Table*& table, Shelf<Table>& shelf) {
        if (table != nullptr) shelf.tables[shelf.count++] = table;
        table = nullptr;
    }

    template <typename Table>
    static void* give(Shelf<Table>& shelf) {
        return shelf.count > 0 ? shelf.tables[--shelf.count] : nullptr;
    }

    Shelf<JQUANT_TBL> quantization_;
    Shelf<JHUFF_TBL> huffman_;
};

// Decoding parts of rows came with libjpeg-turbo 1.5, but gave wrong pixels in some cases up to 2.0.
#if defined(LIBJPEG_TURBO_VERSION_NUMBER) && LIBJPEG_TURBO_VERSION_NUMBER >= 2001000
#define BATCHPLANT_PARTIAL_JPEG 1
#endif

// Interpolating the colours of a pixel needs those beside it, so the columns at a cut differ from a decode of
// the whole image. One would do on the left; on the right colours end with the pair that the last is in.
[[maybe_unused]] constexpr size_t cut_margin = 2;

}  // namespace

struct JpegDecoder::State {
    jpeg_decompress_struct codec{};
    Errors errors{};
    jpeg_progress_mgr progress{};
    SpareTables spare_tables;
    void* (*allocate)(j_common_ptr, int, size_t) = nullptr;
    const uint8_t* encoded = nullptr;
    size_t encoded_size = 0;
    std::vector<uint8_t> scratch;
    std::unique_ptr<BaselineDecoder> baseline;
    size_t baseline_parts = 0;
    std::array<HuffmanCode, 2 * NUM_HUFF_TBLS> codes;

    explicit State(const JpegKernels* kernels) {
        if (kernels != nullptr) baseline = std::make_unique<BaselineDecoder>(*kernels);
        codec.err = install(errors);
        progress.progress_monitor = limit_scans;
    }
    // Safe in every state, also before jpeg_create_decompress.
    ~State() { jpeg_destroy_decompress(&codec); }
    State(const State&) = delete;
    State& operator=(const State&) = delete;

    static void* allocate_small(j_common_ptr codec, int pool, size_t size) {
        auto* state = static_cast<State*>(codec->client_data);
        void* spare = pool == JPOOL_PERMANENT ? state->spare_tables.give(size) : nullptr;
        return spare != nullptr ? spare : state->allocate(codec, pool, size);
    }

    bool create() {
        if (setjmp(errors.jump)) return false;
        jpeg_create_decompress(&codec);
        codec.client_data = this;
        codec.progress = &progress;
        allocate = codec.mem->alloc_small;
        codec.mem->alloc_small = allocate_small;
        return true;
    }

    bool read_header(const uint8_t* data, size_t size) {
        if (setjmp(errors.jump)) return false;
        jpeg_abort_decompress(&codec);
        spare_tables.take(codec);
        errors.warnings = 0;
        errors.strict = true;
        jpeg_mem_src(&codec, data, static_cast<unsigned long>(size));
        jpeg_read_header(&codec, TRUE);
        return true;
    }

    // Fills in what baseline.hpp has to know. False where the image is of another kind.
    bool describe(BaselineHeader& header) {
        const bool three = codec.num_components == 3 && codec.jpeg_color_space == JCS_YCbCr;
        const bool one = codec.num_components == 1 && codec.jpeg_color_space == JCS_GRAYSCALE;
        if (!(one || three) || codec.arith_code) return false;
        header.progressive = codec.progressive_mode;
        const bool one_scan = !jpeg_has_multiple_scans(&codec) && codec.comps_in_scan == codec.num_components &&
                              codec.Ss == 0 && codec.Se == DCTSIZE2 - 1 && codec.Ah == 0 && codec.Al == 0;
        if (!header.progressive && !one_scan) return false;
        header.width = codec.image_width;
        header.height = codec.image_height;
        header.components = static_cast<size_t>(codec.num_components);
        for (size_t c = 0; c < header.components; ++c) {
            const jpeg_component_info& from = codec.comp_info[c];
            if (from.quant_tbl_no < 0 || from.quant_tbl_no >= NUM_QUANT_TBLS) return false;
            if (c > 0 && (from.h_samp_factor != 1 || from.v_samp_factor != 1)) return false;
            const JQUANT_TBL* steps = codec.quant_tbl_ptrs[from.quant_tbl_no];
            header.component[c].steps = steps ? steps->quantval : nullptr;
            header.component[c].id = static_cast<uint8_t>(from.component_id);
            if (header.progressive) continue;
            const bool in_range = from.dc_tbl_no >= 0 && from.dc_tbl_no < NUM_HUFF_TBLS && from.ac_tbl_no >= 0 &&
                                  from.ac_tbl_no < NUM_HUFF_TBLS;
            if (!in_range || codec.cur_comp_info[c] != &from) return false;
            header.component[c].dc_table = static_cast<size_t>(from.dc_tbl_no);
            header.component[c].ac_table = static_cast<size_t>(from.ac_tbl_no);
        }
        const int across = codec.comp_info[0].h_samp_factor, down = codec.comp_info[0].v_samp_factor;
        const bool plain = across == 1 && down == 1, halved = across == 2 && (down == 1 || down == 2);
        if (!plain && !(three && halved)) return false;
        header.across = static_cast<size_t>(across);
        header.down = static_cast<size_t>(down);
        for (size_t n = 0; n < NUM_HUFF_TBLS; ++n) {
            header.dc[n] = copy(codec.dc_huff_tbl_ptrs[n], codes[n]);
            header.ac[n] = copy(codec.ac_huff_tbl_ptrs[n], codes[NUM_HUFF_TBLS + n]);
        }
        header.restart_interval = codec.restart_interval;
        // If the data end with the header, libjpeg reads an end-of-image marker that it made up.
        const auto begin = reinterpret_cast<uintptr_t>(encoded);
        const auto next = reinterpret_cast<uintptr_t>(codec.src->next_input_byte);
        if (next < begin || next - begin > encoded_size) return false;
        // The scan's own header is read again with those of the scans that follow.
        const size_t back = header.progressive ? 8 + 2 * static_cast<size_t>(codec.comps_in_scan) : 0;
        if (back > next - begin) return false;
        header.data = encoded + (next - begin) - back;
        header.end = encoded + encoded_size;
        return true;
    }

    static const HuffmanCode* copy(const JHUFF_TBL* from, HuffmanCode& to) {
        if (from == nullptr) return nullptr;
        std::copy_n(from->bits, to.counts.size(), to.counts.begin());
        to.counts[0] = 0;
        std::copy_n(from->huffval, to.symbols.size(), to.symbols.begin());
        return &to;
    }

    // Of images that end after a complete scan, libjpeg guesses what is missing of a block from the
    // blocks around it.
    bool guesses_blocks() const {
        if (!codec.progressive_mode || codec.coef_bits == nullptr) return false;
        for (int c = 0; c < codec.num_components; ++c) {
            for (int k = 0; k < DCTSIZE2; ++k) {
                if (codec.coef_bits[c][k] != 0) return true;
            }
        }
        return false;
    }

    // Starts decoding with the column `left`, or one before it, and the row `top`, up to column `right` or
    // beyond; sets `left` to where it started and `right` to where it will end.
    bool start(const JpegOptions& options, size_t& left, size_t& top, size_t& right) {
        if (setjmp(errors.jump)) return false;
        // The defaults of libjpeg, named because exact pixels depend on them.
        codec.dct_method = options.dct == JpegDct::accurate ? JDCT_ISLOW : JDCT_IFAST;
        codec.do_fancy_upsampling = TRUE;
        codec.scale_num = 1;
        codec.scale_denom = static_cast<unsigned>(options.shrink);
        errors.strict = options.strict;
        jpeg_start_decompress(&codec);
#ifdef BATCHPLANT_PARTIAL_JPEG
        if (!guesses_blocks()) {
            const size_t from = left > cut_margin ? left - cut_margin : 0;
            const size_t to = right + cut_margin < codec.output_width ? right + cut_margin : codec.output_width;
            auto offset = static_cast<JDIMENSION>(from);
            auto width = static_cast<JDIMENSION>(to - from);
            jpeg_crop_scanline(&codec, &offset, &width);
            left = offset;
            right = offset + width;
            if (top > 0) jpeg_skip_scanlines(&codec, static_cast<JDIMENSION>(top));
            return true;
        }
#endif
        left = top = 0;
        right = codec.output_width;
        return true;
    }

    bool read_rows(uint8_t* pixels, size_t stride, size_t rows) {
        if (setjmp(errors.jump)) return false;
        const JDIMENSION first = codec.output_scanline;
        while (codec.output_scanline - first < rows) {
            constexpr size_t rows_at_once = 8;
            JSAMPROW into[rows_at_once];
            const size_t done = codec.output_scanline - first;
            const size_t count = rows - done < rows_at_once ? rows - done : rows_at_once;
            for (size_t i = 0; i < count; ++i) into[i] = pixels + (done + i) * stride;
            jpeg_read_scanlines(&codec, into, static_cast<JDIMENSION>(count));
        }
        // At the bottom the end of the data is read too, so that its absence is noticed.
        if (codec.output_scanline == codec.output_height) jpeg_finish_decompress(&codec);
        return true;
    }
};

JpegDecoder::JpegDecoder(const JpegKernels* kernels) : state_(std::make_unique<State>(kernels)) {
    if (!state_->create()) throw std::runtime_error(std::string("libjpeg cannot be used: ") + state_->errors.message);
}

JpegDecoder::~JpegDecoder() = default;

ImageShape JpegDecoder::open(const uint8_t* data, size_t size) {
    State& state = *state_;
    if (!state.read_header(data, size)) throw_bad_jpeg(state.errors.message);
    const auto& codec = state.codec;
    if (codec.data_precision != 8) throw_bad_jpeg(std::to_string(codec.data_precision) + " bits per sample, not 8");
    const ImageShape stored{codec.image_height, codec.image_width, static_cast<size_t>(codec.num_components)};
    state.encoded = data;
    state.encoded_size = size;
    check_size(stored, size);
    return stored;
}

ImageShape JpegDecoder::shape(const JpegOptions& options) const {
    const auto& codec = state_->codec;
    const size_t channels = channels_of(output_space(codec.num_components, options.mode));
    const auto shrunken = [&](size_t side) { return (side + options.shrink - 1) / options.shrink; };
    const ImageShape result{shrunken(codec.image_height), shrunken(codec.image_width), channels};
    // The result may have more channels than are stored.
    check_size(result, state_->encoded_size);
    return result;
}

void JpegDecoder::decode(uint8_t* pixels, const JpegOptions& options) {
    State& state = *state_;
    const ImageShape whole = shape(options);
    state.codec.out_color_space = output_space(state.codec.num_components, options.mode);
    size_t left = 0, top = 0, right = whole.width;
    const bool done =
        state.start(options, left, top, right) && state.read_rows(pixels, whole.width * whole.channels, whole.height);
    if (!done) throw_bad_jpeg(state.errors.message);
    if (state.codec.out_color_space != JCS_CMYK) return;
    // Adobe, whose CMYK files are the ones that exist, stores inks inverted; Pillow gives them back upright too.
    const size_t count = whole.bytes();
    for (size_t i = 0; i < count; ++i) pixels[i] = static_cast<uint8_t>(255 - pixels[i]);
}

JpegDecoder::Part JpegDecoder::decode_part(size_t left, size_t top, size_t right, size_t bottom,
                                           const JpegOptions& options, size_t spare) {
    State& state = *state_;
    const ImageShape whole = shape(options);
    if (whole.channels == 4) throw std::invalid_argument("parts of a CMYK image cannot be decoded");
    if (left >= right || right > whole.width || top >= bottom || bottom > whole.height) {
        throw std::invalid_argument("that part of the image does not exist");
    }
    const auto make_room = [&](size_t pixels, size_t more) {
        if (state.scratch.size() < pixels + more) state.scratch.resize(pixels + more);
        return state.scratch.data();
    };
    BaselineHeader header;
    if (state.baseline && options.dct == JpegDct::accurate && options.shrink == 1 && state.describe(header)) {
        const size_t width = right - left, height = bottom - top, stride = width * whole.channels;
        uint8_t* pixels = make_room(stride * height, std::max(spare, 3 * jpeg_overrun));
        if (state.baseline->decode(header, left, top, right, bottom, whole.channels, pixels)) {
            ++state.baseline_parts;
            return {pixels, left, top, width, height, stride, pixels + stride * height + spare};
        }
    }
    state.codec.out_color_space = output_space(state.codec.num_components, options.mode);
    if (!state.start(options, left, top, right)) throw_bad_jpeg(state.errors.message);
    const size_t width = right - left, height = bottom - top, stride = width * whole.channels;
    uint8_t* pixels = make_room(stride * height, spare);
    if (!state.read_rows(pixels, stride, height)) throw_bad_jpeg(state.errors.message);
    return {pixels, left, top, width, height, stride, pixels + stride * height + spare};
}

template <typename Made>
bool JpegDecoder::baseline_part(size_t left, size_t top, size_t right, size_t bottom, Made& made,
                                bool (BaselineDecoder::*make)(const BaselineHeader&, size_t, size_t, size_t, size_t,
                                                              Made&)) {
    State& state = *state_;
    BaselineHeader header;
    if (!state.baseline || !state.describe(header) || header.progressive) return false;
    if (left >= right || right > header.width || top >= bottom || bottom > header.height) {
        throw std::invalid_argument("that part of the image does not exist");
    }
    return ((*state.baseline).*make)(header, left, top, right, bottom, made);
}

bool JpegDecoder::code_part(size_t left, size_t top, size_t right, size_t bottom, CodedPart& coded) {
    return baseline_part(left, top, right, bottom, coded, &BaselineDecoder::code);
}

bool JpegDecoder::scan_part(size_t left, size_t top, size_t right, size_t bottom, ScanPart& scan) {
    return baseline_part(left, top, right, bottom, scan, &BaselineDecoder::scan);
}

size_t JpegDecoder::warnings() const { return state_->errors.warnings; }

size_t JpegDecoder::baseline_parts() const { return state_->baseline_parts; }

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
