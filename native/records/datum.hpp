#pragma once

#include <cstddef>
#include <cstdint>

namespace batchplant {

// One message of Caffe's Datum (protobuf): where its parts lie, counted from the start of the message.
struct Datum {
    int64_t channels = 0, height = 0, width = 0, label = 0, encoded = 0;
    int64_t data_start = 0, data_size = -1;    // -1: it has no data
    int64_t float_start = 0, float_count = 0;  // the first run of float_data, and how many values all runs have
};
constexpr size_t datum_numbers = 9;

// nullptr, or what is wrong with the message.
const char* parse_datum(const uint8_t* data, size_t size, Datum& datum);

// Copies the values of float_data, packed or not, to `out`, which has room for Datum::float_count of them.
void copy_datum_floats(const uint8_t* data, size_t size, float* out);

}  // namespace batchplant
