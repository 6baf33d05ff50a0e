// The loops over pixels for x86-64, for registers of either width. kernels_avx2.cpp and kernels_avx512.cpp include
// this where the compiler may use their instructions, and define before it:
//
//   Wide            a register of integers, and these on it; what crosses 16 bytes does so nowhere but in them
//   load, store     a register of memory
//   every32, every16    the same value everywhere
//   add32, add16, above16 (the upper half of products), pairs (sums of two products)
//   shift32<n>, shift16<n> to the right, up32<n> to the left
//   both            bits that both have
//   low, high       values of 16 bits from two registers in turn, of the lower and the upper half of each 16 bytes
//   packed          values of 32 bits from two registers as 16 bits
//   picked          bytes by their number in the same 16 bytes; 255: zero
//   spread<k>       the k-th 32 bits of each 16 bytes, four times
//   gathered        16 bytes from each of these places
//   widened         bytes as 16 bits
//   store_bytes     values of 16 bits as bytes, cut to 0..255
//   store_pixels    the same, of every 16 bytes those that are picked, so many bytes apart
//   Floats, scaled, store_floats, store_halves    as many floats as a register holds

constexpr size_t wide_bytes = sizeof(Wide), wide_quads = sizeof(Wide) / 16;

// The same 16 bytes everywhere.
Wide repeated(const uint8_t* bytes) {
    const uint8_t* places[4] = {bytes, bytes, bytes, bytes};
    return gathered(places);
}

// --- horizontal ---------------------------------------------------------------------------------------------

// Weights of 22 bits are taken apart, so that 16 bits are enough for each part: the sums of the lower and of the upper
// parts are exact, and so is what they make together.
constexpr int lower_bits = 11;

// Where taps 2 k and 2 k + 1 of the channels are among the 16 bytes from the first tap on, each with a zero above
// it: a pair of taps in 32 bits. With three channels the fourth is nobody's.
Wide tap_pair(size_t channels, size_t k) {
    uint8_t at[16];
    for (size_t i = 0; i < 16; ++i) {
        at[i] = i % 2 == 0 ? static_cast<uint8_t>((2 * k + i % 4 / 2) * channels + i / 4) : 255;
    }
    return repeated(at);
}

// Pixels x, x + 2, ... of a row, one in each 16 bytes: the weighted sums of their taps, four at a time, or of the two
// that they have.
template <size_t channels, bool two>
struct Summing {
    Wide first, second, lower, half;

    // Written out: what the compiler writes by itself, it writes for any processor.
    Summing() {
        first = tap_pair(channels, 0);
        second = tap_pair(channels, 1);
        lower = every32((1 << lower_bits) - 1);
        half = every32(1 << (weight_bits - 1));
    }

    Wide operator()(const uint8_t* const* pixels, const int32_t* const* weights, size_t groups) const {
        Wide fine = half, coarse = every32(0);
        const uint8_t* pixel[wide_quads];
        const int32_t* weight[wide_quads];
        std::copy_n(pixels, wide_quads, pixel);
        std::copy_n(weights, wide_quads, weight);
        for (size_t group = 0; group < groups; ++group) {
            const Wide window = gathered(pixel), four = gathered(weight);
            // Of each 16 bytes: the lower parts of four weights, then the upper ones.
            const Wide parts = packed(both(four, lower), shift32<lower_bits>(four));
            const Wide one = picked(window, first);
            fine = add32(fine, pairs(one, spread<0>(parts)));
            coarse = add32(coarse, pairs(one, spread<2>(parts)));
            if constexpr (!two) {
                const Wide other = picked(window, second);
                fine = add32(fine, pairs(other, spread<1>(parts)));
                coarse = add32(coarse, pairs(other, spread<3>(parts)));
            }
            for (size_t i = 0; i < wide_quads; ++i) {
                pixel[i] += 4 * channels;
                weight[i] += 4;
            }
        }
        return shift32<weight_bits>(add32(up32<lower_bits>(coarse), fine));
    }
};

// `most` taps, 2 or 4, or 0 where there are more.
template <size_t channels, size_t most>
void sum_to_bytes(const uint8_t* row, const Taps& taps, uint8_t* dst) {
    const Summing<channels, most == 2> summing;
    const size_t width = taps.width, stride = taps.stride, groups = most ? 1 : stride / 4;
    // Three of every four bytes, or all.
    uint8_t kept[16];
    for (size_t i = 0; i < 16; ++i)
        kept[i] = static_cast<uint8_t>(i / channels < 4 ? i / channels * 4 + i % channels : 255);
    const __m128i keep = load16(kept);
    const int32_t* first = taps.first.data();
    const int32_t* weight = taps.weight.data();
    constexpr size_t step = 2 * wide_quads;
    const auto make = [&](size_t x, auto at) {
        const auto sum = [&](size_t from) {
            const uint8_t* pixels[wide_quads];
            const int32_t* weights[wide_quads];
            for (size_t i = 0; i < wide_quads; ++i) {
                const size_t number = at(x + from + 2 * i);
                pixels[i] = row + static_cast<size_t>(first[number]) * channels;
                weights[i] = weight + number * stride;
            }
            return summing(pixels, weights, groups);
        };
        store_pixels(dst + x * channels, 4 * channels, packed(sum(0), sum(1)), keep);
    };
    size_t x = 0;
    for (; x + step <= width; x += step) make(x, [](size_t number) { return number; });
    // There is room for more, but nothing to make it of.
    if (x < width) make(x, [width](size_t number) { return std::min(number, width - 1); });
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

// Four values at a time, each four from 16 bytes of the row of their own; each value is a pair of taps in 32
// bits, for the instruction that multiplies pairs and adds. The next pair of taps is picked in the same way two
// pixels further on. One register has every other four and one those between, which is the order that packing
// them restores.
constexpr size_t fine_lanes = wide_bytes / 2;

bool pack_quads(FineTaps& taps) {
    const size_t channels = taps.channels, values = taps.width * channels;
    const size_t count = taps.count, pair_count = (count + 1) / 2;
    // What is written may be anything to the compiler; these it need not read again after each byte.
    const int32_t* const first = taps.first.data();
    const int16_t* const weights = taps.weight.data();
    int32_t* const starts = taps.starts.data();
    uint8_t* const shuffles = taps.shuffles.data();
    int16_t* const packed_weights = taps.weights.data();
    size_t x = 0, c = 0;
    for (size_t value = 0; value < values; value += 4) {
        const size_t quad = value / 4, step = quad / (2 * wide_quads);
        const size_t place = quad % 2 * wide_quads + quad % (2 * wide_quads) / 2;
        const size_t here = std::min<size_t>(4, values - value);
        // Pixels go left to right, or right to left where the image is flipped.
        size_t last = x;
        for (size_t left = c + here - 1; left >= channels; left -= channels) ++last;
        const int32_t start = std::min(first[x], first[last]), stop = std::max(first[x], first[last]) + 2;
        if (static_cast<size_t>(stop - start) * channels > 16) return false;
        starts[step * 2 * wide_quads + place] = start * static_cast<int32_t>(channels);
        uint8_t* shuffle = shuffles + (step * fine_lanes + place * 4) * 4;
        int16_t* weight = packed_weights + (step * pair_count * fine_lanes + place * 4) * 2;
        for (size_t i = 0; i < here; ++i, shuffle += 4, weight += 2) {
            const auto at = static_cast<uint32_t>(static_cast<size_t>(first[x] - start) * channels + c);
            const uint32_t picks = 0xFF00FF00u | at | (at + static_cast<uint32_t>(channels)) << 16;
            std::memcpy(shuffle, &picks, sizeof picks);
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
    taps.starts.assign(steps * 2 * wide_quads, 0);
    taps.shuffles.assign(steps * fine_lanes * 4, 255);
    taps.weights.assign(steps * ((taps.count + 1) / 2) * 2 * fine_lanes, 0);
    taps.lanes = pack_quads(taps) ? fine_lanes : 0;
}

template <int shift, int32_t half, size_t fixed_pairs>
void sum_to_fine(const uint8_t* row, const FineTaps& taps, int16_t* dst) {
    const size_t steps = taps.starts.size() / (2 * wide_quads), two_pixels = taps.channels * 2;
    const size_t pair_count = fixed_pairs ? fixed_pairs : (taps.count + 1) / 2;
    const int32_t* start = taps.starts.data();
    const uint8_t* shuffle = taps.shuffles.data();
    const int16_t* weight = taps.weights.data();
    const auto part = [&](const uint8_t* from, const int32_t* starts, Wide at, const int16_t* weights) {
        const uint8_t* places[wide_quads];
        for (size_t i = 0; i < wide_quads; ++i) places[i] = from + starts[i];
        return pairs(picked(gathered(places), at), load(weights));
    };
    for (size_t step = 0; step < steps; ++step, dst += fine_lanes) {
        const Wide at_even = load(shuffle), at_odd = load(shuffle + wide_bytes);
        Wide even = every32(half), odd = even;
        const uint8_t* from = row;
        for (size_t pair = 0; pair < pair_count; ++pair, from += two_pixels, weight += wide_bytes) {
            even = add32(even, part(from, start, at_even, weight));
            odd = add32(odd, part(from, start + wide_quads, at_odd, weight + wide_bytes / 2));
        }
        store(dst, packed(shift32<shift>(even), shift32<shift>(odd)));
        start += 2 * wide_quads;
        shuffle += 2 * wide_bytes;
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

// Calls step(i) for so many values at a time; the last call overlaps the one before rather than pass the end.
// Returns false where there are fewer.
template <size_t size, typename Step>
bool in_steps(size_t count, Step step) {
    if (count < size) return false;
    size_t i = 0;
    for (; i + size <= count; i += size) step(i);
    if (i < count) step(count - size);
    return true;
}

// Values of two rows, each pair times two weights that lie side by side.
struct Blend {
    Wide sum_low, sum_high;

    void add(Wide one, Wide other, int32_t weights) {
        sum_low = add32(sum_low, pairs(low(one, other), every32(weights)));
        sum_high = add32(sum_high, pairs(high(one, other), every32(weights)));
    }
};

int32_t side_by_side(int first, int second) {
    return static_cast<int32_t>(static_cast<uint32_t>(second) << 16 | static_cast<uint16_t>(first));
}

void blend_bytes(const uint8_t* const* rows, const int32_t* weights, size_t taps, uint8_t* dst, size_t count) {
    constexpr size_t most = 64;
    if (taps > most || count < wide_bytes / 2) return portable_kernels.blend_bytes(rows, weights, taps, dst, count);
    // Two rows at a time, the last perhaps with nothing.
    int32_t fine_weights[most / 2], coarse_weights[most / 2];
    for (size_t k = 0; k < taps; k += 2) {
        constexpr int32_t lower = (1 << lower_bits) - 1;
        const int32_t first = weights[k], second = k + 1 < taps ? weights[k + 1] : 0;
        fine_weights[k / 2] = side_by_side(first & lower, second & lower);
        coarse_weights[k / 2] = side_by_side(first >> lower_bits, second >> lower_bits);
    }
    const Wide half = every32(1 << (weight_bits - 1)), nothing = every32(0);
    in_steps<wide_bytes / 2>(count, [&](size_t i) {
        Blend fine{half, half}, coarse{nothing, nothing};
        for (size_t k = 0; k < taps; k += 2) {
            const Wide one = widened(rows[k] + i), other = k + 1 < taps ? widened(rows[k + 1] + i) : nothing;
            fine.add(one, other, fine_weights[k / 2]);
            coarse.add(one, other, coarse_weights[k / 2]);
        }
        const Wide sum_low = add32(up32<lower_bits>(coarse.sum_low), fine.sum_low);
        const Wide sum_high = add32(up32<lower_bits>(coarse.sum_high), fine.sum_high);
        store_bytes(dst + i, packed(shift32<weight_bits>(sum_low), shift32<weight_bits>(sum_high)));
    });
}

void blend_fine(const int16_t* const* rows, const int16_t* weights, size_t taps, uint8_t* dst, size_t count) {
    constexpr int shift = fine_bits + fine_weight_bits;
    const Wide half = every32(1 << (shift - 1)), nothing = every32(0);
    const bool done = in_steps<wide_bytes / 2>(count, [&](size_t i) {
        Blend sums{half, half};
        size_t k = 0;
        for (; k + 2 <= taps; k += 2) {
            int32_t two;
            std::memcpy(&two, weights + k, sizeof two);
            sums.add(load(rows[k] + i), load(rows[k + 1] + i), two);
        }
        if (k < taps) sums.add(load(rows[k] + i), nothing, side_by_side(weights[k], 0));
        store_bytes(dst + i, packed(shift32<shift>(sums.sum_low), shift32<shift>(sums.sum_high)));
    });
    if (!done) portable_kernels.blend_fine(rows, weights, taps, dst, count);
}

void blend_linear(const int16_t* upper, const int16_t* lower, int share, uint8_t* dst, size_t count) {
    const Wide below = every16(static_cast<int16_t>(share));
    const Wide above = every16(static_cast<int16_t>((1 << linear_bits) - share));
    const Wide two = every16(2);
    const bool done = in_steps<wide_bytes / 2>(count, [&](size_t i) {
        const Wide sum = add16(above16(load(upper + i), above), above16(load(lower + i), below));
        store_bytes(dst + i, shift16<2>(add16(sum, two)));
    });
    if (!done) portable_kernels.blend_linear(upper, lower, share, dst, count);
}

// --- rearranging and converting -----------------------------------------------------------------------------

void to_float(const uint8_t* src, const float* scale, const float* offset, float* dst, size_t count) {
    const bool done = in_steps<wide_bytes / 2>(count, [&](size_t i) {
        for (const size_t at : {i, i + wide_bytes / 4}) {
            store_floats(dst + at, scaled(src + at, scale + at, offset + at));
        }
    });
    if (!done) portable_kernels.to_float(src, scale, offset, dst, count);
}

void to_half(const uint8_t* src, const float* scale, const float* offset, uint16_t* dst, size_t count) {
    const bool done = in_steps<wide_bytes / 2>(count, [&](size_t i) {
        for (const size_t at : {i, i + wide_bytes / 4}) {
            store_halves(dst + at, scaled(src + at, scale + at, offset + at));
        }
    });
    if (!done) portable_kernels.to_half(src, scale, offset, dst, count);
}
