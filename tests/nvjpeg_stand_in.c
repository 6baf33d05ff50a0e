/* The part of nvJPEG's interface that batchplant uses, without a GPU: "device" memory is memory, and the pixel (y, x)
 * of picture i becomes (y, x, i). What it was asked for can be looked up; what it should refuse can be set. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

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
    return format == 5 ? 0 : 2;
}
int nvjpegDecodeBatched(void* handle, void* state, const uint8_t* const* data, const size_t* sizes, Image* out,
                        void* stream) {
    (void)handle, (void)state, last_stream = stream;
    if (fail_decode) return fail_decode;
    for (int i = 0; i < batch; ++i) {
        unsigned width, height;
        if (size_of(data[i], sizes[i], &width, &height) != 0) return 3;
        for (unsigned y = 0; y < height; ++y) {
            for (unsigned x = 0; x < width; ++x) {
                const uint8_t pixel[3] = {(uint8_t)y, (uint8_t)x, (uint8_t)i};
                memcpy(out[i].channel[0] + y * out[i].pitch[0] + 3 * x, pixel, 3);
            }
        }
    }
    return 0;
}
