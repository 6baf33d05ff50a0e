// The loops over pixels for x86-64, for vectors of 32 or 64 bytes. kernels_avx2.cpp and kernels_avx512.cpp include this
// where the compiler may use their instructions, and define before it the following operations. They are named after
// those of Google Highway, with the width of a lane in bits. A block is 16 bytes; no operation crosses blocks, except
// for those that load or store.
//
//   Vec, FloatVec              vectors of integers and of floats
//   load, store                a whole vector
//   load_blocks                one block from each pointer
//   promote_load16             bytes, zero-extended to 16 bits
//   demote_store8              values of 16 bits, saturated to bytes
//   store_pixels               the same, then table_lookup_bytes in every block, the blocks `apart` bytes apart
//   set32, set16               the same value in every lane
//   add32, add16               sums
//   mul_high16                 upper halves of products
//   widen_mul_pairwise_add     sums of two neighbouring products, in 32 bits
//   bit_and                    bitwise and
//   shift_right32<n>, shift_right16<n>    arithmetic shifts
//   shift_left32<n>
//   interleave_lower16, interleave_upper16    lanes of two vectors in turn, from the lower or upper half of each block
//   reorder_demote2_to16       two vectors of 32 bits, saturated to one of 16 bits, block by block
//   table_lookup_bytes         bytes of a block by their index in it; 255 gives zero
//   broadcast32<k>             lane k of each block in all four lanes of the block
//   load_mul_add, store_floats, store_halves    bytes * scale + offset in single precision

constexpr size_t vec_bytes = sizeof(Vec), vec_blocks = sizeof(Vec) / 16;

// The same 16 bytes in every block.
Vec load_dup128(const uint8_t* bytes) {
    const uint8_t* pointers[4] = {bytes, bytes, bytes, bytes};
    return load_blocks(pointers);
}

// --- horizontal ---------------------------------------------------------------------------------------------

// Weights of 22 bits are split, so that each part fits 16 bits. The sums of the lower and of the upper parts are exact,
// and so is their combination.
constexpr int lower_bits = 11;

// Indices of taps 2 k and 2 k + 1 of every channel among the 16 bytes from the first tap on, each zero-extended: a pair
// of taps in 32 bits. With three channels the fourth lane is unused.
Vec tap_pair(size_t channels, size_t k) {
    uint8_t at[16];
    for (size_t i = 0; i < 16; ++i) {
        at[i] = i % 2 == 0 ? static_cast<uint8_t>((2 * k + i % 4 / 2) * channels + i / 4) : 255;
    }
    return load_dup128(at);
}

// Weighted sums of the taps of pixels x, x + 2, ... of a row, one pixel in each block: of four taps at a time, or of
// the only two.
template <size_t channels, bool two>
struct Summing {
    Vec first, second, lower, half;

    // Explicit, because GCC does not apply the target pragma to an implicit constructor.
    Summing() {
        first = tap_pair(channels, 0);
        second = tap_pair(channels, 1);
        lower = set32((1 << lower_bits) - 1);
        half = set32(1 << (weight_bits - 1));
    }

    Vec operator()(const uint8_t* const* pixels, const int32_t* const* weights, size_t groups) const {
        Vec fine = half, coarse = set32(0);
        const uint8_t* pixel[vec_blocks];
        const int32_t* weight[vec_blocks];
        std::copy_n(pixels, vec_blocks, pixel);
        std::copy_n(weights, vec_blocks, weight);
        for (size_t group = 0; group < groups; ++group) {
            const Vec window = load_blocks(pixel), four_weights = load_blocks(weight);
            // In each block: the lower parts of four weights, then the upper ones.
            const Vec parts =
                reorder_demote2_to16(bit_and(four_weights, lower), shift_right32<lower_bits>(four_weights));
            const Vec first_taps = table_lookup_bytes(window, first);
            fine = add32(fine, widen_mul_pairwise_add(first_taps, broadcast32<0>(parts)));
            coarse = add32(coarse, widen_mul_pairwise_add(first_taps, broadcast32<2>(parts)));
            if constexpr (!two) {
                const Vec second_taps = table_lookup_bytes(window, second);
                fine = add32(fine, widen_mul_pairwise_add(second_taps, broadcast32<1>(parts)));
                coarse = add32(coarse, widen_mul_pairwise_add(second_taps, broadcast32<3>(parts)));
            }
            for (size_t i = 0; i < vec_blocks; ++i) {
                pixel[i] += 4 * channels;
                weight[i] += 4;
            }
        }
        return shift_right32<weight_bits>(add32(shift_left32<lower_bits>(coarse), fine));
    }
};

// For at most `max_taps` taps, 2 or 4; 0 for any number.
template <size_t channels, size_t max_taps>
void sum_to_bytes(const uint8_t* row, const Taps& taps, uint8_t* dst) {
    const Summing<channels, max_taps == 2> summing;
    const size_t width = taps.width, stride = taps.stride, groups = max_taps ? 1 : stride / 4;
    // The first three of every four bytes, or all.
    uint8_t channel_bytes[16];
    for (size_t i = 0; i < 16; ++i)
        channel_bytes[i] = static_cast<uint8_t>(i / channels < 4 ? i / channels * 4 + i % channels : 255);
    const __m128i indices = load128(channel_bytes);
    const int32_t* first = taps.first.data();
    const int32_t* weight = taps.weight.data();
    constexpr size_t step = 2 * vec_blocks;
    const auto store_step = [&](size_t x, auto pixel_at) {
        const auto sum = [&](size_t from) {
            const uint8_t* pixels[vec_blocks];
            const int32_t* weights[vec_blocks];
            for (size_t i = 0; i < vec_blocks; ++i) {
                const size_t number = pixel_at(x + from + 2 * i);
                pixels[i] = row + static_cast<size_t>(first[number]) * channels;
                weights[i] = weight + number * stride;
            }
            return summing(pixels, weights, groups);
        };
        store_pixels(dst + x * channels, 4 * channels, reorder_demote2_to16(sum(0), sum(1)), indices);
    };
    size_t x = 0;
    for (; x + step <= width; x += step) store_step(x, [](size_t number) { return number; });
    // The last step has room to write past the end, but no pixels to read there.
    if (x < width) store_step(x, [width](size_t number) { return std::min(number, width - 1); });
}

template <size_t channels>
void to_bytes_of(const uint8_t* row, const Taps& taps, uint8_t* dst) {
    if (taps.count <= 2) return sum_to_bytes<channels, 2>(row, taps, dst);
    if (taps.count <= 4) return sum_to_bytes<channels, 4>(row, taps, dst);
    sum_to_bytes<channels, 0>(row, taps, dst);
}

void to_bytes(const uint8_t* row, const Taps& taps, uint8_t* dst) {
    if (taps.channels == 3) return to_bytes_of<3>(row, taps, dst);
    if (taps.channels == 4) return to_bytes_of<4>(row, taps, dst);
    portable_kernels.to_bytes(row, taps, dst);
}

// Each block makes four values from 16 bytes of the row; each value is a pair of taps in 32 bits, for
// widen_mul_pairwise_add. The next pair of taps is looked up in the same way two pixels further on. One vector holds
// the even groups of four and another the odd ones, which is the order that reorder_demote2_to16 restores.
constexpr size_t fine_lanes = vec_bytes / 2;

bool pack_quads(FineTaps& taps) {
    const size_t channels = taps.channels, values = taps.width * channels;
    const size_t count = taps.count, pair_count = (count + 1) / 2;
    // Local copies: stores through uint8_t* may alias the struct, so the compiler would reload its pointers every time.
    const int32_t* const first = taps.first.data();
    const int16_t* const weights = taps.weight.data();
    int32_t* const starts = taps.starts.data();
    uint8_t* const shuffles = taps.shuffles.data();
    int16_t* const packed_weights = taps.weights.data();
    size_t x = 0, c = 0;
    for (size_t value = 0; value < values; value += 4) {
        const size_t quad = value / 4, step = quad / (2 * vec_blocks);
        const size_t slot = quad % 2 * vec_blocks + quad % (2 * vec_blocks) / 2;
        const size_t group_size = std::min<size_t>(4, values - value);
        // Pixels go left to right, or right to left where the image is flipped.
        size_t last = x;
        for (size_t left = c + group_size - 1; left >= channels; left -= channels) ++last;
        const int32_t start = std::min(first[x], first[last]), stop = std::max(first[x], first[last]) + 2;
        if (static_cast<size_t>(stop - start) * channels > 16) return false;
        starts[step * 2 * vec_blocks + slot] = start * static_cast<int32_t>(channels);
        uint8_t* shuffle = shuffles + (step * fine_lanes + slot * 4) * 4;
        int16_t* weight = packed_weights + (step * pair_count * fine_lanes + slot * 4) * 2;
        for (size_t i = 0; i < group_size; ++i, shuffle += 4, weight += 2) {
            const auto at = static_cast<uint32_t>(static_cast<size_t>(first[x] - start) * channels + c);
            const uint32_t indices = 0xFF00FF00u | at | (at + static_cast<uint32_t>(channels)) << 16;
            std::memcpy(shuffle, &indices, sizeof indices);
            const int16_t* from = weights + x * count;
            for (size_t k = 0; k + 1 < count; k += 2) std::memcpy(weight + k * fine_lanes, from + k, 2 * sizeof *from);
            if (count % 2) weight[(count - 1) * fine_lanes] = from[count - 1];
            c = c + 1 < channels ? c + 1 : 0;
            x += c == 0;
        }
    }
    return true;
}

void pack(FineTaps& taps) {
    const size_t steps = (taps.width * taps.channels + fine_lanes - 1) / fine_lanes;
    taps.starts.assign(steps * 2 * vec_blocks, 0);
    taps.shuffles.assign(steps * fine_lanes * 4, 255);
    taps.weights.assign(steps * ((taps.count + 1) / 2) * 2 * fine_lanes, 0);
    taps.lanes = pack_quads(taps) ? fine_lanes : 0;
}

template <int shift, int32_t half, size_t fixed_pairs>
void sum_to_fine(const uint8_t* row, const FineTaps& taps, int16_t* dst) {
    const size_t steps = taps.starts.size() / (2 * vec_blocks), two_pixels = taps.channels * 2;
    const size_t pair_count = fixed_pairs ? fixed_pairs : (taps.count + 1) / 2;
    const int32_t* start = taps.starts.data();
    const uint8_t* shuffle = taps.shuffles.data();
    const int16_t* weight = taps.weights.data();
    const auto products = [&](const uint8_t* from, const int32_t* starts, Vec indices, const int16_t* weights) {
        const uint8_t* pointers[vec_blocks];
        for (size_t i = 0; i < vec_blocks; ++i) pointers[i] = from + starts[i];
        return widen_mul_pairwise_add(table_lookup_bytes(load_blocks(pointers), indices), load(weights));
    };
    for (size_t step = 0; step < steps; ++step, dst += fine_lanes) {
        const Vec even_indices = load(shuffle), odd_indices = load(shuffle + vec_bytes);
        Vec even = set32(half), odd = even;
        const uint8_t* from = row;
        for (size_t pair = 0; pair < pair_count; ++pair, from += two_pixels, weight += vec_bytes) {
            even = add32(even, products(from, start, even_indices, weight));
            odd = add32(odd, products(from, start + vec_blocks, odd_indices, weight + vec_bytes / 2));
        }
        store(dst, reorder_demote2_to16(shift_right32<shift>(even), shift_right32<shift>(odd)));
        start += 2 * vec_blocks;
        shuffle += 2 * vec_bytes;
    }
}

void to_fine(const uint8_t* row, const FineTaps& taps, int16_t* dst) {
    if (taps.lanes == 0) return portable_kernels.to_fine(row, taps, dst);
    if (taps.linear) return sum_to_fine<linear_bits - fine_bits, 0, 1>(row, taps, dst);
    constexpr int shift = fine_weight_bits - fine_bits;
    constexpr int32_t half = 1 << (shift - 1);
    if (taps.count <= 2) return sum_to_fine<shift, half, 1>(row, taps, dst);
    if (taps.count <= 4) return sum_to_fine<shift, half, 2>(row, taps, dst);
    sum_to_fine<shift, half, 0>(row, taps, dst);
}

// --- vertical -----------------------------------------------------------------------------------------------

// Calls step(i) for every `size` values; the last call overlaps the previous one instead of passing the end. Returns
// false if there are fewer than `size`.
template <size_t size, typename Step>
bool for_each_vector(size_t count, Step step) {
    if (count < size) return false;
    size_t i = 0;
    for (; i + size <= count; i += size) step(i);
    if (i < count) step(count - size);
    return true;
}

// Sums of products: values of two rows, each pair times two weights in one lane of 32 bits.
struct Blend {
    Vec sum_low, sum_high;

    void add(Vec first, Vec second, int32_t weights) {
        sum_low = add32(sum_low, widen_mul_pairwise_add(interleave_lower16(first, second), set32(weights)));
        sum_high = add32(sum_high, widen_mul_pairwise_add(interleave_upper16(first, second), set32(weights)));
    }
};

int32_t side_by_side(int first, int second) {
    return static_cast<int32_t>(static_cast<uint32_t>(second) << 16 | static_cast<uint16_t>(first));
}

void blend_bytes(const uint8_t* const* rows, const int32_t* weights, size_t taps, uint8_t* dst, size_t count) {
    constexpr size_t max_taps = 64;
    if (taps > max_taps || count < vec_bytes / 2) return portable_kernels.blend_bytes(rows, weights, taps, dst, count);
    // Two rows at a time; the last row may have no partner.
    int32_t fine_weights[max_taps / 2], coarse_weights[max_taps / 2];
    for (size_t k = 0; k < taps; k += 2) {
        constexpr int32_t lower = (1 << lower_bits) - 1;
        const int32_t first = weights[k], second = k + 1 < taps ? weights[k + 1] : 0;
        fine_weights[k / 2] = side_by_side(first & lower, second & lower);
        coarse_weights[k / 2] = side_by_side(first >> lower_bits, second >> lower_bits);
    }
    const Vec half = set32(1 << (weight_bits - 1)), zero = set32(0);
    for_each_vector<vec_bytes / 2>(count, [&](size_t i) {
        Blend fine{half, half}, coarse{zero, zero};
        for (size_t k = 0; k < taps; k += 2) {
            const Vec first = promote_load16(rows[k] + i);
            const Vec second = k + 1 < taps ? promote_load16(rows[k + 1] + i) : zero;
            fine.add(first, second, fine_weights[k / 2]);
            coarse.add(first, second, coarse_weights[k / 2]);
        }
        const Vec sum_low = add32(shift_left32<lower_bits>(coarse.sum_low), fine.sum_low);
        const Vec sum_high = add32(shift_left32<lower_bits>(coarse.sum_high), fine.sum_high);
        demote_store8(dst + i,
                      reorder_demote2_to16(shift_right32<weight_bits>(sum_low), shift_right32<weight_bits>(sum_high)));
    });
}

void blend_fine(const int16_t* const* rows, const int16_t* weights, size_t taps, uint8_t* dst, size_t count) {
    constexpr int shift = fine_bits + fine_weight_bits;
    const Vec half = set32(1 << (shift - 1)), zero = set32(0);
    const bool done = for_each_vector<vec_bytes / 2>(count, [&](size_t i) {
        Blend sums{half, half};
        size_t k = 0;
        for (; k + 2 <= taps; k += 2) {
            int32_t two_weights;
            std::memcpy(&two_weights, weights + k, sizeof two_weights);
            sums.add(load(rows[k] + i), load(rows[k + 1] + i), two_weights);
        }
        if (k < taps) sums.add(load(rows[k] + i), zero, side_by_side(weights[k], 0));
        demote_store8(dst + i,
                      reorder_demote2_to16(shift_right32<shift>(sums.sum_low), shift_right32<shift>(sums.sum_high)));
    });
    if (!done) portable_kernels.blend_fine(rows, weights, taps, dst, count);
}

void blend_linear(const int16_t* upper, const int16_t* lower, int share, uint8_t* dst, size_t count) {
    const Vec below = set16(static_cast<int16_t>(share));
    const Vec above = set16(static_cast<int16_t>((1 << linear_bits) - share));
    const Vec two = set16(2);
    const bool done = for_each_vector<vec_bytes / 2>(count, [&](size_t i) {
        const Vec sum = add16(mul_high16(load(upper + i), above), mul_high16(load(lower + i), below));
        demote_store8(dst + i, shift_right16<2>(add16(sum, two)));
    });
    if (!done) portable_kernels.blend_linear(upper, lower, share, dst, count);
}

// --- rearranging and converting -----------------------------------------------------------------------------

void to_float(const uint8_t* src, const float* scale, const float* offset, float* dst, size_t count) {
    const bool done = for_each_vector<vec_bytes / 2>(count, [&](size_t i) {
        for (const size_t at : {i, i + vec_bytes / 4}) {
            store_floats(dst + at, load_mul_add(src + at, scale + at, offset + at));
        }
    });
    if (!done) portable_kernels.to_float(src, scale, offset, dst, count);
}

void to_half(const uint8_t* src, const float* scale, const float* offset, uint16_t* dst, size_t count) {
    const bool done = for_each_vector<vec_bytes / 2>(count, [&](size_t i) {
        for (const size_t at : {i, i + vec_bytes / 4}) {
            store_halves(dst + at, load_mul_add(src + at, scale + at, offset + at));
        }
    });
    if (!done) portable_kernels.to_half(src, scale, offset, dst, count);
}
