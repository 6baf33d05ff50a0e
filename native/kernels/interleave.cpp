#include "interleave.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bits.hpp"

namespace batchplant {

// Every turn of a source has a first place, before which it would be too far ahead, and a last one, after which it
// would be too far behind. Of all sources that may come, the one with the earliest last place does. Tijdeman has shown
// (the chairman assignment problem) that no last place is missed where a source of n may be ahead or behind by
// 1 - 1 / (2n - 2).
void interleave(std::span<const int64_t> shares, std::span<uint32_t> source, std::span<uint32_t> turn) {
    const size_t period = source.size();
    // Products below stay within 64 bits.
    constexpr size_t longest = size_t{1} << 22, most = size_t{1} << 14;
    if (turn.size() != period || period > longest) throw std::invalid_argument("the period is too long");
    std::vector<uint32_t> present;
    size_t sum = 0;
    for (size_t i = 0; i < shares.size(); ++i) {
        if (shares[i] < 0 || static_cast<uint64_t>(shares[i]) > longest)
            throw std::invalid_argument("a share is wrong");
        sum += static_cast<size_t>(shares[i]);
        if (shares[i] > 0) present.push_back(static_cast<uint32_t>(i));
    }
    if (sum != period || present.size() > most) throw std::invalid_argument("the shares do not make up the period");
    if (present.size() == 1) {
        std::fill(source.begin(), source.end(), present[0]);
        for (size_t place = 0; place < period; ++place) turn[place] = static_cast<uint32_t>(place);
        return;
    }
    const uint64_t parts = 2 * present.size() - 2, length = period;
    std::vector<uint32_t> came(shares.size(), 0);
    // Places are counted from 1 here: after so many places, how often has a source come?
    const auto first = [&](uint32_t i) {
        const uint64_t share = static_cast<uint64_t>(shares[i]);
        return std::max<uint64_t>(1, ((came[i] * parts + 1) * length + parts * share - 1) / (parts * share));
    };
    const auto last = [&](uint32_t i) {
        return ((came[i] + 1) * parts - 1) * length / (parts * static_cast<uint64_t>(shares[i]));
    };
    // Those that wait for their first place, and those that may come, by their last one: a list for each place, of the
    // latter by number.
    constexpr uint32_t none = ~uint32_t{0};
    std::vector<uint32_t> waiting(period + 2, none), due(period + 2, none), behind(shares.size(), none);
    Bits ready(period + 2);
    const auto may_come = [&](uint32_t i) {
        const size_t place = std::min<uint64_t>(last(i), period + 1);
        uint32_t* at = &due[place];
        while (*at < i) at = &behind[*at];
        behind[i] = *at;
        *at = i;
        ready.set(place);
    };
    const auto wait = [&](uint32_t i, uint64_t least) {
        uint32_t& list = waiting[std::min<uint64_t>(std::max(first(i), least), period + 1)];
        behind[i] = list;
        list = i;
    };
    for (const uint32_t i : present) wait(i, 1);
    for (size_t place = 0; place < period; ++place) {
        for (uint32_t i = waiting[place + 1]; i != none;) may_come(std::exchange(i, behind[i]));
        const int64_t earliest = ready.next(place);
        if (earliest < 0) throw std::logic_error("no source may come");
        uint32_t& list = due[static_cast<size_t>(earliest)];
        const uint32_t i = list;
        list = behind[i];
        if (list == none) ready.clear(static_cast<size_t>(earliest));
        source[place] = i;
        turn[place] = came[i]++;
        if (came[i] < static_cast<uint64_t>(shares[i])) wait(i, place + 2);
    }
}

}  // namespace batchplant
