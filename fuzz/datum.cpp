#include "../native/records/datum.hpp"

#include <cstdlib>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    batchplant::Datum found;
    if (batchplant::parse_datum(data, size, found) != nullptr) return 0;
    if (found.data_size > static_cast<int64_t>(size) - found.data_start) std::abort();
    if (found.float_count * 4 > static_cast<int64_t>(size)) std::abort();
    std::vector<float> values(static_cast<size_t>(found.float_count));
    batchplant::copy_datum_floats(data, size, values.data());
    return 0;
}
