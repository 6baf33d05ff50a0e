#include "../native/records/tar.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

using batchplant::TarScanner;

namespace {

// Whether the archive is sound; what was found is checked against its bounds.
bool scanned(TarScanner& scanner, const uint8_t* data, size_t size, int64_t piece) {
    const auto total = static_cast<int64_t>(size);
    try {
        while (scanner.next() < total) {
            const int64_t at = scanner.next();
            const auto length = static_cast<size_t>(std::min(piece, total - at));
            scanner.scan(data + at, length, total);
            // A piece that is too short for a header needs a longer one.
            if (scanner.next() == at) piece = std::min(piece * 2, TarScanner::longest_header + 1024);
        }
        scanner.finish();
    } catch (const batchplant::TarError& error) {
        if (error.offset < 0 || error.offset > total) std::abort();
        return false;
    }
    if (scanner.next() != total) std::abort();
    return true;
}

}  // namespace

namespace {

void check(const uint8_t* data, size_t size) {
    TarScanner scanner;
    const bool sound = scanned(scanner, data, size, static_cast<int64_t>(size) + 1);
    TarScanner pieces;
    if (scanned(pieces, data, size, 700) != sound) std::abort();
    if (!sound) return;
    if (scanner.starts != pieces.starts || scanner.keys != pieces.keys) std::abort();
    const size_t samples = scanner.firsts.size();
    if (scanner.key_offsets.size() != samples + 1 || scanner.starts.size() != scanner.rows.size()) std::abort();
    for (size_t i = 0; i < scanner.starts.size(); ++i) {
        const int64_t start = scanner.starts[i], bytes = scanner.sizes[i];
        if (start < 0 || bytes < 0 || start + bytes > static_cast<int64_t>(size)) std::abort();
        if (scanner.rows[i] < 0 || scanner.rows[i] >= static_cast<int64_t>(samples)) std::abort();
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    check(data, size);
    // Most damage ends at a header's checksum; with that made right, it goes further.
    std::vector<uint8_t> copy(data, data + size);
    for (size_t at = 0; at + 512 <= size; at += 512) {
        uint8_t* block = copy.data() + at;
        if (std::memcmp(block + 257, "ustar", 5) != 0) continue;
        std::memset(block + 148, ' ', 8);
        unsigned sum = 0;
        for (size_t i = 0; i < 512; ++i) sum += block[i];
        for (size_t i = 6; i-- > 0; sum >>= 3) block[148 + i] = static_cast<uint8_t>('0' + (sum & 7));
        block[154] = 0;
    }
    check(copy.data(), size);
    return 0;
}
