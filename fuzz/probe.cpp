#include "../native/probe.hpp"

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const batchplant::ImageHeader header = batchplant::probe_image(data, size);
    const bool sized = header.width > 0 && header.height > 0;
    const bool unsized = header.width == 0 && header.height == 0 && header.bits == 0;
    if (!sized && !unsized) std::abort();
    return 0;
}
