#include "permute.hpp"

#include <cmath>

namespace batchplant {
namespace {

// In a small rectangle it takes more rounds until two numbers of one row have surely parted.
uint64_t rounds_for(uint64_t count) { return count < 64 ? 32 : count < 1024 ? 16 : 8; }

void rotate(uint64_t& one, uint64_t other, uint64_t size, uint64_t salt) {
    one += ((mix(salt + other) >> 24) * size) >> 40;
    if (one >= size) one -= size;
}

void rotate_back(uint64_t& one, uint64_t other, uint64_t size, uint64_t salt) {
    const uint64_t by = ((mix(salt + other) >> 24) * size) >> 40;
    one = one >= by ? one - by : one + size - by;
}

// A rectangle just over `count`. Its width is even: rotations of rows of odd length are all even, and would reach
// only half of the permutations.
struct Rectangle {
    explicit Rectangle(uint64_t count)
        : width(static_cast<uint64_t>(2 * std::ceil(std::sqrt(static_cast<double>(count)) / 2))),
          height((count + width - 1) / width),
          rounds(rounds_for(count)) {}
    uint64_t width, height, rounds;
};

}  // namespace

int64_t permute(int64_t at, uint64_t count, uint64_t key) {
    const Rectangle shape(count);
    auto x = static_cast<uint64_t>(at);
    // A Feistel network: rows and columns in turn are rotated by a hash of the other coordinate. Who leaves
    // [0, count) walks on until back.
    do {
        uint64_t row = x / shape.width, column = x % shape.width;
        for (uint64_t round = 0; round < shape.rounds; round += 2) {
            rotate(column, row, shape.width, key + golden_ratio * round);
            rotate(row, column, shape.height, key + golden_ratio * (round + 1));
        }
        x = row * shape.width + column;
    } while (x >= count);
    return static_cast<int64_t>(x);
}

int64_t unpermute(int64_t to, uint64_t count, uint64_t key) {
    const Rectangle shape(count);
    auto x = static_cast<uint64_t>(to);
    do {
        uint64_t row = x / shape.width, column = x % shape.width;
        for (uint64_t round = shape.rounds; round > 0; round -= 2) {
            rotate_back(row, column, shape.height, key + golden_ratio * (round - 1));
            rotate_back(column, row, shape.width, key + golden_ratio * (round - 2));
        }
        x = row * shape.width + column;
    } while (x >= count);
    return static_cast<int64_t>(x);
}

}  // namespace batchplant
