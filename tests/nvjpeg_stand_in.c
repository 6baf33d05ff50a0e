/* The part of nvJPEG's interface that batchplant uses, without a GPU: "device" memory is memory, and libjpeg decodes, to
 * the planes that are stored. What it was asked for can be looked up; what it should refuse can be set. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

typedef struct {
    uint8_t* channel[4];
    size_t pitch[4];
} Image;

int no_hardware, no_device, no_state, fail_decode, lie; /* set by tests */
int handles, states, streams, initialized, batch;      /* looked up by tests */
void* last_stream;

static int things[16];
static unsigned parsed_width, parsed_height;

static int made(int* count, void** out) {
    *out = &things[(*count)++ % 16];
    return 0;
}

int nvjpegCreateEx(int backend, void* a, void* b, unsigned flags, void** out) {
    (void)a, (void)b, (void)flags;
    if (no_device) return 6;
    if (backend == 3 && no_hardware) return 7;
    return made(&handles, out);
}
int nvjpegDestroy(void* handle) { return (void)handle, --handles, 0; }
int nvjpegJpegStateCreate(void* handle, void** out) { return (void)handle, no_state ? 5 : made(&states, out); }
int nvjpegJpegStateDestroy(void* state) { return (void)state, --states, 0; }
int nvjpegJpegStreamCreate(void* handle, void** out) { return (void)handle, made(&streams, out); }
int nvjpegJpegStreamDestroy(void* stream) { return (void)stream, --streams, 0; }

static int size_of(const uint8_t* data, size_t size, unsigned* width, unsigned* height) {
    for (size_t at = 2; at + 9 < size; at += 2 + (data[at + 2] << 8 | data[at + 3])) {
        if (data[at + 1] != 0xC0) continue;
        *height = data[at + 5] << 8 | data[at + 6];
        *width = (data[at + 7] << 8 | data[at + 8]) + (lie ? 1 : 0);
        return 0;
    }
    return 3;
}
int nvjpegJpegStreamParseHeader(void* handle, const uint8_t* data, size_t size, void* stream) {
    return (void)handle, (void)stream, size_of(data, size, &parsed_width, &parsed_height);
}
int nvjpegJpegStreamGetFrameDimensions(void* stream, unsigned* width, unsigned* height) {
    (void)stream, *width = parsed_width, *height = parsed_height;
    return 0;
}
int nvjpegDecodeBatchedSupported(void* handle, void* stream, int* unsupported) {
    (void)handle, (void)stream, *unsupported = parsed_width > 100 ? 2 : 0;
    return 0;
}
int nvjpegDecodeBatchedInitialize(void* handle, void* state, int size, int threads, int format) {
    (void)handle, (void)state, (void)threads, batch = size, ++initialized;
    return format == 1 ? 0 : 2;
}

static void planes(const uint8_t* data, size_t size, Image* out) {
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr errors;
    info.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&info);
    jpeg_mem_src(&info, data, size);
    jpeg_read_header(&info, TRUE);
    info.raw_data_out = TRUE;
    jpeg_start_decompress(&info);
    const unsigned rows = info.max_v_samp_factor * DCTSIZE;
    JSAMPROW lines[3][4 * DCTSIZE];
    JSAMPARRAY all[3] = {lines[0], lines[1], lines[2]};
    for (int c = 0; c < 3; ++c) {
        const size_t line = info.comp_info[c].width_in_blocks * DCTSIZE + 64;
        for (unsigned row = 0; row < rows; ++row) lines[c][row] = malloc(line);
    }
    while (info.output_scanline < info.output_height) {
        const unsigned first = info.output_scanline;
        jpeg_read_raw_data(&info, all, rows);
        for (int c = 0; c < 3; ++c) {
            const jpeg_component_info* one = &info.comp_info[c];
            const unsigned from = first * one->v_samp_factor / info.max_v_samp_factor;
            for (unsigned row = 0; row < (unsigned)one->v_samp_factor * DCTSIZE; ++row) {
                if (from + row >= one->downsampled_height) break;
                memcpy(out->channel[c] + (from + row) * out->pitch[c], lines[c][row], one->downsampled_width);
            }
        }
    }
    for (int c = 0; c < 3; ++c) {
        for (unsigned row = 0; row < rows; ++row) free(lines[c][row]);
    }
    jpeg_finish_decompress(&info);
    jpeg_destroy_decompress(&info);
}

int nvjpegDecodeBatched(void* handle, void* state, const uint8_t* const* data, const size_t* sizes, Image* out,
                        void* stream) {
    (void)handle, (void)state, last_stream = stream;
    if (fail_decode) return fail_decode;
    for (int i = 0; i < batch; ++i) planes(data[i], sizes[i], &out[i]);
    return 0;
}
