#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

inline void expect(bool good) {
    if (!good) std::abort();
}

// Feeds a scanner pieces of this size, each in memory of its own, so that a read behind it is seen. Gives how many
// bytes it used; `stopped` says when it takes no more.
template <typename Scanner, typename Stopped>
size_t feed_in_pieces(Scanner& scanner, const uint8_t* data, size_t size, size_t piece, Stopped stopped) {
    size_t at = 0, end = 0;
    do {
        end = std::min(size, end + piece);
        const std::vector<uint8_t> part(data + at, data + end);
        at += scanner.feed(part.data(), part.size(), static_cast<int64_t>(at), end == size);
    } while (end < size && !stopped());
    return at;
}

// The sizes of runs that lie one behind the other, up to the end of the data.
inline std::vector<int64_t> sizes_between(const std::vector<int64_t>& starts, size_t size) {
    std::vector<int64_t> sizes(starts.size());
    for (size_t i = 0; i < starts.size(); ++i) {
        sizes[i] = (i + 1 < starts.size() ? starts[i + 1] : static_cast<int64_t>(size)) - starts[i];
    }
    return sizes;
}
