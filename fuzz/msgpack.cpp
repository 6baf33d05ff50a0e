#include "../native/records/msgpack.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

namespace mp = batchplant::msgpack;

namespace {

constexpr size_t most = 1000;

// Scans the stream in pieces of this size; where the values begin must not depend on it.
mp::Scanner scan(const uint8_t* data, size_t size, size_t piece) {
    mp::Scanner scanner;
    size_t at = 0;
    size_t end = 0;
    while (end < size && scanner.fault == mp::Fault::none) {
        end = std::min(size, end + piece);
        // A piece on the heap of its own, so that a read behind it is seen.
        const std::vector<uint8_t> part(data + at, data + end);
        at += scanner.feed(part.data(), part.size(), static_cast<int64_t>(at), size - at, most);
        if (scanner.starts.size() >= most) {
            // A piece more or less must make no difference.
            scanner.starts.resize(most);
            scanner.fault = mp::Fault::none;
            break;
        }
    }
    return scanner;
}

void check_values(const uint8_t* data, size_t size, const std::vector<int64_t>& starts,
                  const std::vector<int64_t>& sizes) {
    const size_t n = starts.size();
    const std::vector<std::string> keys = {"image", "number", "text", "array"};
    std::vector<int32_t> info(n * keys.size());
    std::vector<int64_t> at(n * keys.size()), length(n * keys.size());
    const mp::Places places{info.data(), at.data(), length.data()};
    if (mp::find(data, size, starts.data(), sizes.data(), n, keys, places).row >= 0) return;
    std::vector<uint8_t> out(n * 8), found(n);
    std::vector<int64_t> value_starts(n), value_sizes(n), shapes(n * 3);
    for (size_t key = 0; key < keys.size(); ++key) {
        const int32_t* const infos = info.data() + key * n;
        const int64_t* const firsts = at.data() + key * n;
        for (const auto& [kind, width] : {std::pair{'i', 8}, {'i', 1}, {'u', 8}, {'f', 8}, {'f', 4}, {'b', 1}}) {
            mp::numbers(data, size, infos, firsts, n, kind, static_cast<size_t>(width), out.data());
        }
        for (size_t rank = 0; rank < 4; ++rank) {
            std::vector<uint8_t> values;
            mp::lists(data, size, infos, firsts, length.data() + key * n, n, 'f', 8, rank, found.data(),
                      value_sizes.data(), shapes.data(), values);
            for (const int64_t bytes : value_sizes) {
                if (bytes < 0 || static_cast<size_t>(bytes) > values.size()) std::abort();
            }
            const mp::Failure failure =
                mp::arrays(data, size, infos, firsts, length.data() + key * n, n, "|u1", 1, rank, found.data(),
                           value_starts.data(), value_sizes.data(), shapes.data());
            if (failure.row >= 0) continue;
            for (size_t row = 0; row < n; ++row) {
                const int64_t end = value_starts[row] + value_sizes[row];
                if (found[row] == 1 && (value_starts[row] < starts[row] || end > starts[row] + sizes[row]))
                    std::abort();
            }
        }
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const mp::Scanner whole = scan(data, size, size == 0 ? 1 : size);
    const mp::Scanner pieces = scan(data, size, 7);
    if (whole.starts != pieces.starts || whole.fault != pieces.fault) std::abort();
    std::vector<int64_t> starts = whole.starts;
    std::vector<int64_t> sizes;
    for (size_t i = 0; i < starts.size(); ++i) {
        const int64_t end = i + 1 < starts.size() ? starts[i + 1] : static_cast<int64_t>(size);
        sizes.push_back(end - starts[i]);
        // The scanner and the walk over a value agree where it ends.
        const uint8_t* const behind = mp::skip_value(data + starts[i], data + size);
        if (i + 1 < starts.size() && behind != data + end) std::abort();
        check_values(data, size, {starts[i]}, {sizes[i]});
    }
    check_values(data, size, starts, sizes);
    return 0;
}
