#include "../native/records/riegeli.hpp"

#include <algorithm>
#include <cstdlib>
#include <vector>

using namespace batchplant;

// The first byte chooses a place in a block of 64 KiB.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < 1) return 0;
    const uint64_t position = data[0] < 128 ? 65536 + data[0] : 0;
    std::vector<uint8_t> out(size);
    read_riegeli(data + 1, size - 1, position, out.data());

    const RiegeliChunk chunk{nullptr, static_cast<int64_t>(size - 1), 'r', data[0], static_cast<int64_t>(size - 1)};
    for (const uint64_t begin : {uint64_t{0}, uint64_t{65536 + 25 + data[0]}, uint64_t{131072} - data[0]}) {
        std::vector<uint8_t> framed, again(size + 24 * (2 + size / 65512) + 40);
        frame_riegeli(data + 1, chunk, begin, framed);
        again.resize(framed.size());
        const RiegeliChunk read = read_riegeli(framed.data(), framed.size(), begin, again.data());
        if (read.error != nullptr || read.size != chunk.size || read.records != chunk.records) std::abort();
        if (!std::equal(data + 1, data + size, again.begin())) std::abort();
    }
    return 0;
}
