#include "../native/text/json.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common.hpp"

using namespace batchplant;

namespace {

json::Scanner scan(const uint8_t* data, size_t size, json::Layout layout, size_t piece) {
    json::Scanner scanner;
    scanner.layout = layout;
    const size_t used = feed_in_pieces(scanner, data, size, piece, [&] { return scanner.broken; });
    expect(used == size || scanner.broken);
    return scanner;
}

void check_values(const uint8_t* data, size_t size, const json::Scanner& found) {
    const size_t n = found.starts.size();
    const std::vector<int64_t> sizes = sizes_between(found.starts, size);
    const std::vector<std::string> keys = {"t", "a", "l", "o"};
    const bool bare = found.objects < static_cast<int64_t>(n);
    const size_t entries = n * (bare ? 1 : keys.size());
    std::vector<uint8_t> kind(entries);
    std::vector<int64_t> start(entries), length(entries);
    const text::Failure failure = json::find(data, size, found.starts.data(), sizes.data(), n, keys, bare,
                                             {kind.data(), start.data(), length.data()});
    // Every record that the scanner took has its values.
    if (failure.row >= 0) std::abort();
    for (size_t i = 0; i < entries; ++i) {
        if (length[i] < 0) continue;
        if (start[i] < 0 || start[i] + length[i] > static_cast<int64_t>(size)) std::abort();
        const std::vector<uint8_t> cell(data + start[i], data + start[i] + length[i]);
        const int64_t at = 0, whole = static_cast<int64_t>(cell.size());
        int64_t offsets[2];
        if (kind[i] == static_cast<uint8_t>(json::Kind::escaped)) {
            std::vector<uint8_t> plain(cell.size());
            const auto used =
                static_cast<size_t>(json::unescape(cell.data(), cell.size(), plain.data()) - plain.data());
            if (used > plain.size() || text::valid_utf8(plain.data(), used) != used) std::abort();
        }
        for (const auto& dims : {std::vector<int64_t>{-1}, {-1, 2}, {2, 2}, {0}}) {
            std::vector<uint8_t> values;
            json::arrays(cell.data(), &at, &whole, 1, {'f', 8}, dims, values, offsets);
        }
        uint8_t reason;
        json::check(cell.data(), &at, &whole, 1, &reason);
    }
}

// Text that is written comes back.
void check_writing(const uint8_t* data, size_t size) {
    if (text::valid_utf8(data, size) != size) return;
    const int64_t start = 0, length = static_cast<int64_t>(size);
    text::Part part;
    part.key = "\"t\":";
    part.data = data;
    part.starts = &start;
    part.sizes = &length;
    std::vector<uint8_t> out;
    int64_t offsets[2];
    text::pack(1, {part}, {true, ',', "", "\n"}, out, offsets);
    const json::Scanner found = scan(out.data(), out.size(), json::Layout::lines, out.size());
    if (found.starts.size() != 1 || !found.bad.empty()) std::abort();
    uint8_t kind;
    int64_t at, cell;
    const int64_t row = static_cast<int64_t>(out.size());
    if (json::find(out.data(), out.size(), &start, &row, 1, {"t"}, false, {&kind, &at, &cell}).row >= 0) std::abort();
    std::vector<uint8_t> plain(static_cast<size_t>(cell) + 1);
    const uint8_t* const end = json::unescape(out.data() + at, static_cast<size_t>(cell), plain.data());
    if (static_cast<size_t>(end - plain.data()) != size || (size > 0 && std::memcmp(plain.data(), data, size) != 0)) {
        std::abort();
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    for (const json::Layout layout : {json::Layout::lines, json::Layout::stream, json::Layout::array}) {
        const json::Scanner whole = scan(data, size, layout, std::max<size_t>(size, 1));
        const json::Scanner pieces = scan(data, size, layout, 7);
        if (whole.starts != pieces.starts || whole.bad.size() != pieces.bad.size() || whole.broken != pieces.broken) {
            std::abort();
        }
        check_values(data, size, whole);
    }
    check_writing(data, size);
    std::vector<int64_t> starts, sizes;
    json::elements(data, size, starts, sizes);
    for (size_t i = 0; i < starts.size(); ++i)
        expect(json::skip_value(data + starts[i], data + size).at == data + starts[i] + sizes[i]);
    return 0;
}
