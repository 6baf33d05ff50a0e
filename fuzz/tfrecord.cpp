#include "../native/records/tfrecord.hpp"

#include <vector>

#include "common.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace batchplant;
    // The first byte says how the work is divided, and which checks are made.
    const uint8_t how = size > 0 ? data[0] : 0;
    const uint64_t chunk = 1 + how % 64;
    const bool check = how >= 128;
    uint64_t at = 0;
    std::vector<int64_t> starts, sizes;
    while (at < size) {
        const TfRecordScan found = scan_tfrecord(data, size, at, at + chunk, check);
        starts.insert(starts.end(), found.starts.begin(), found.starts.end());
        sizes.insert(sizes.end(), found.sizes.begin(), found.sizes.end());
        expect(found.next >= at && found.next <= size);
        if (found.fault != TfRecordFault::none) break;
        expect(found.next > at);
        at = found.next;
    }
    const size_t n = starts.size();
    expect(check_tfrecords(data, size, starts.data(), sizes.data(), n, check).row == -1);
    // Places that nobody checked.
    for (size_t i = 0; i < n; ++i) {
        starts[i] += how % 3 - 1;
        sizes[i] -= how % 5 - 2;
    }
    check_tfrecords(data, size, starts.data(), sizes.data(), n, true);

    // What is framed is found again.
    const std::vector<int64_t> from{0, static_cast<int64_t>(size / 2)};
    const std::vector<int64_t> lengths{static_cast<int64_t>(size / 3), static_cast<int64_t>(size - size / 2)};
    std::vector<uint8_t> framed(framed_size(lengths.data(), 2));
    frame_tfrecords(data, from.data(), lengths.data(), 2, framed.data());
    const TfRecordScan again = scan_tfrecord(framed.data(), framed.size(), 0, framed.size(), true);
    expect(again.fault == TfRecordFault::none && again.sizes == lengths && again.next == framed.size());
    std::vector<uint8_t> copied(size);
    const std::vector<int64_t> to{0, lengths[0]};
    if (lengths[0] + lengths[1] <= static_cast<int64_t>(size)) {
        const TfRecordCheck good = copy_tfrecords(framed.data(), framed.size(), again.starts.data(), again.sizes.data(),
                                                  2, copied.data(), to.data());
        expect(good.row == -1);
        for (int64_t i = 0; i < lengths[1]; ++i) expect(copied[to[1] + i] == data[from[1] + i]);
    }
    return 0;
}
