#include "../native/images/probe.hpp"

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const batchplant::ImageHeader header = batchplant::probe_image(data, size);
    const bool sized = header.width > 0 && header.height > 0;
    const bool unsized = header.width == 0 && header.height == 0 && header.bits == 0;
    if (!sized && !unsized) std::abort();
    // What is taken for a photo is one, and its header lies inside of it.
    const size_t before = batchplant::device_jpeg_header(data, size, header.height, header.width);
    const bool jpeg = header.encoding == batchplant::Encoding::jpeg && header.mode == batchplant::PixelMode::rgb;
    if (before > size || (before > 0 && !(sized && jpeg))) std::abort();
    return 0;
}
