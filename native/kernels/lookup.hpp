#pragma once

#include <cstddef>
#include <cstdint>

namespace batchplant {

// Every value becomes what stands for it in the table.
void look_up(const uint8_t table[256], uint8_t* values, size_t count);

}  // namespace batchplant
