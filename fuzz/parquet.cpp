// Levels of lists and numbers of a dictionary: depth, levels, count and width come from the first bytes.

#include "../native/records/parquet.hpp"

#include "common.hpp"

namespace {

template <typename T>
void look_up(batchplant::parquet::Packed data, int width, size_t entries, size_t count) {
    std::vector<T> dictionary(entries), out(count);
    for (size_t i = 0; i < entries; ++i) dictionary[i] = static_cast<T>(i);
    if (!batchplant::parquet::look_up<T>(data, width, dictionary, out)) return;
    for (const T one : out) expect(one < entries || entries > T(~T(0)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace batchplant;
    if (size < 5) return 0;
    const int depth = 1 + data[0] % parquet::deepest, present = 1 + data[1] % 15, width = data[2] % 34;
    const size_t count = data[3] * 5u, split = std::min<size_t>(data[4], size - 5);
    // In memory of their own, so that a read behind them is seen.
    const std::vector<uint8_t> first(data + 5, data + 5 + split), second(data + 5 + split, data + size);
    parquet::Lists lists(depth, 2 * count);
    if (lists.add(first, second, present, count) && lists.add(second, first, present, count)) {
        size_t most = lists.values();
        const auto offsets = std::move(lists).offsets();
        for (size_t d = offsets.size(); d-- > 0;) {
            expect(offsets[d].empty() || static_cast<size_t>(offsets[d].back()) == most);
            for (size_t i = 1; i < offsets[d].size(); ++i) expect(offsets[d][i - 1] < offsets[d][i]);
            most = offsets[d].size() - 1;
        }
    }
    look_up<uint8_t>(second, width, split, count);
    look_up<uint64_t>(second, width, split, count);
    return 0;
}
