#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace batchplant {

// Memory that is written next, all of it. A large one gets huge pages where the system has them: the kernel hands
// those out, and zeroes them, several times as fast as small ones.
std::unique_ptr<uint8_t[]> fresh_memory(size_t size);

}  // namespace batchplant
