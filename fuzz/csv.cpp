#include "../native/text/csv.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common.hpp"

using namespace batchplant;

namespace {

csv::Scanner scan(const uint8_t* data, size_t size, size_t columns, bool blank, size_t piece, uint8_t escape = 0) {
    csv::Scanner scanner{{',', blank, {"", "NA"}, escape}, columns, 1, {}, {}, {}};
    expect(feed_in_pieces(scanner, data, size, piece, [] { return false; }) == size);
    return scanner;
}

void check_cells(const uint8_t* data, size_t size, const csv::Scanner& found) {
    const size_t n = found.starts.size();
    const std::vector<int64_t> sizes = sizes_between(found.starts, size);
    std::vector<int64_t> wanted;
    for (size_t i = 0; i < found.columns; ++i) wanted.push_back(static_cast<int64_t>(found.columns - 1 - i));
    const size_t entries = n * found.columns;
    std::vector<int64_t> start(entries), length(entries, -1);
    std::vector<uint8_t> special(entries), number(8);
    const std::vector<bool> empty(found.columns, false);
    const text::Failure failure = csv::find(data, size, found.starts.data(), sizes.data(), n, found.dialect,
                                            found.columns, wanted, empty, start.data(), length.data(), special.data());
    // Every row that the scanner took has its cells.
    if (failure.row >= 0) std::abort();
    for (size_t i = 0; i < entries; ++i) {
        if (length[i] < 0) continue;
        if (start[i] < 0 || start[i] + length[i] > static_cast<int64_t>(size)) std::abort();
        const std::vector<uint8_t> cell(data + start[i], data + start[i] + length[i]);
        std::vector<uint8_t> plain(cell.size());
        const uint8_t* const behind =
            csv::unquote(cell.data(), cell.size(), special[i], found.dialect.escape, plain.data());
        if (behind > plain.data() + plain.size()) std::abort();
        // What holds nothing special is what it is.
        if (special[i] == 0 && static_cast<size_t>(behind - plain.data()) != cell.size()) std::abort();
        const uint32_t classes = text::classify(cell.data(), cell.data() + cell.size());
        // What is classed as a number is read as one.
        const auto reads = [&](text::Dtype dtype) {
            return text::parse_number(cell.data(), cell.data() + cell.size(), dtype, number.data());
        };
        if ((classes & text::whole) != 0 && !reads({'i', 8})) std::abort();
        if ((classes & text::natural) != 0 && !reads({'u', 8})) std::abort();
        if ((classes & (text::real | text::whole | text::word)) != 0 && !reads({'f', 8})) std::abort();
        if ((classes & text::boolean) != 0 && !reads({'b', 1})) std::abort();
        for (const text::Dtype dtype : {text::Dtype{'f', 2}, {'f', 4}, {'i', 1}, {'u', 2}}) reads(dtype);
        std::vector<uint8_t> bytes;
        const int64_t at = 0, whole = static_cast<int64_t>(cell.size());
        int64_t offsets[2];
        text::from_base64(cell.data(), &at, &whole, 1, bytes, offsets);
    }
}

// Text that is written comes back.
void check_writing(const uint8_t* data, size_t size) {
    if (text::valid_utf8(data, size) != size) return;
    const int64_t start = 0, length = static_cast<int64_t>(size);
    text::Part part;
    part.data = data;
    part.starts = &start;
    part.sizes = &length;
    std::vector<uint8_t> out;
    int64_t offsets[2];
    text::pack(1, {part, part}, {false, ',', "", "\n"}, out, offsets);
    const csv::Scanner found = scan(out.data(), out.size(), 2, false, out.size());
    if (found.starts.size() != 1 || !found.bad.empty()) std::abort();
    check_cells(out.data(), out.size(), found);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    for (const int way : {0, 1, 2, 3}) {
        const bool blank = way % 2 == 1;
        const uint8_t escape = way < 2 ? 0 : '\\';
        const size_t columns = blank ? 1 : 3;
        const csv::Scanner whole = scan(data, size, columns, blank, std::max<size_t>(size, 1), escape);
        const csv::Scanner pieces = scan(data, size, columns, blank, 7, escape);
        if (whole.starts != pieces.starts || whole.bad.size() != pieces.bad.size() || whole.line != pieces.line)
            std::abort();
        if (whole.classes != pieces.classes) std::abort();
        check_cells(data, size, whole);
    }
    check_writing(data, size);
    std::vector<csv::Field> fields;
    csv::first_row(data, size, 0, {}, true, fields);
    return 0;
}
