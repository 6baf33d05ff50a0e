#include "lookup.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace batchplant {

void look_up(const uint8_t table[256], uint8_t* values, size_t count) {
    size_t i = 0;
#if defined(__aarch64__)
    // Four tables of 64, each of which leaves alone what is not its own.
    const uint8x16x4_t first = vld1q_u8_x4(table), second = vld1q_u8_x4(table + 64);
    const uint8x16x4_t third = vld1q_u8_x4(table + 128), fourth = vld1q_u8_x4(table + 192);
    const uint8x16_t step = vdupq_n_u8(64);
    for (; i + 16 <= count; i += 16) {
        uint8x16_t at = vld1q_u8(values + i);
        uint8x16_t found = vqtbl4q_u8(first, at);
        at = vsubq_u8(at, step);
        found = vqtbx4q_u8(found, second, at);
        at = vsubq_u8(at, step);
        found = vqtbx4q_u8(found, third, at);
        at = vsubq_u8(at, step);
        vst1q_u8(values + i, vqtbx4q_u8(found, fourth, at));
    }
#endif
    for (; i < count; ++i) values[i] = table[values[i]];
}

}  // namespace batchplant
