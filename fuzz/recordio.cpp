#include "../native/records/recordio.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

using namespace batchplant;

// What a scan finds is what joining gives; and data, framed and scanned, come back.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const RecordIoScan found = scan_recordio(data, size, 0, size);
    if (found.end > size || found.starts.size() != found.sizes.size()) std::abort();
    for (size_t i = 0; i < found.starts.size(); ++i) {
        const auto length = static_cast<size_t>(found.sizes[i]);
        if (length > size) std::abort();
        std::vector<uint8_t> joined(length);
        if (!join_recordio(data, size, found.starts[i], joined.data(), length)) std::abort();
    }
    for (size_t start = 0; start <= std::min<size_t>(size, 64); ++start) {
        uint8_t out[64];
        join_recordio(data, size, static_cast<int64_t>(start), out, sizeof out);
    }
    const size_t framed_size = framed_recordio_size(data, size);
    std::vector<uint8_t> framed(framed_size);
    if (frame_recordio(data, size, framed.data()) != framed.data() + framed_size) std::abort();
    const RecordIoScan again = scan_recordio(framed.data(), framed_size, 0, framed_size);
    if (again.error != nullptr || again.starts.size() != 1 || again.end != framed_size) std::abort();
    if (static_cast<size_t>(again.sizes[0]) != size) std::abort();
    std::vector<uint8_t> back(size);
    if (!join_recordio(framed.data(), framed_size, 0, back.data(), size)) std::abort();
    if (size > 0 && std::memcmp(back.data(), data, size) != 0) std::abort();
    return 0;
}
