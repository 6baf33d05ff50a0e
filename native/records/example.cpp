#include "example.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <unordered_map>

namespace batchplant {
namespace {

static_assert(std::endian::native == std::endian::little, "floats are copied as they lie");

struct View {
    const uint8_t* begin = nullptr;
    const uint8_t* end = nullptr;
    size_t size() const { return static_cast<size_t>(end - begin); }
    std::string_view text() const { return {reinterpret_cast<const char*>(begin), size()}; }
};

enum Wire : uint32_t { varint = 0, fixed64 = 1, sized = 2, open_group = 3, close_group = 4, fixed32 = 5 };

// Reads a message field by field. After a failure, begin is where it was.
struct Message : View {
    uint32_t field = 0;
    uint32_t wire = 0;
    View value;  // of a sized field

    explicit Message(View of) : View(of) {}

    bool number(uint64_t& out) {
        if (begin < end && *begin < 0x80) {
            out = *begin++;
            return true;
        }
        uint64_t number = 0;
        const uint8_t* p = begin;
        for (unsigned shift = 0; shift < 70 && p < end; shift += 7) {
            const uint64_t byte = *p++;
            number |= (byte & 0x7F) << shift;
            if (byte < 0x80) {
                begin = p;
                out = number;
                return true;
            }
        }
        return false;
    }

    // The tag of the next field, and of a sized field also its value.
    bool next() {
        const uint8_t* const here = begin;
        uint64_t tag = 0;
        if (!number(tag) || tag > UINT32_MAX || tag >> 3 == 0) return fail(here);
        field = static_cast<uint32_t>(tag >> 3);
        wire = static_cast<uint32_t>(tag & 7);
        if (wire != sized) return wire <= fixed32 || fail(here);
        uint64_t length = 0;
        if (!number(length) || length > size()) return fail(here);
        value = {begin, begin + length};
        begin += length;
        return true;
    }

    // Passes over what stands behind a tag that is not ours. Groups nest, by a counter, not by calls.
    bool skip() {
        const uint8_t* const here = begin;
        size_t depth = 0;
        do {
            if (depth > 0 && !next()) return fail(here);
            uint64_t ignored = 0;
            switch (wire) {
                case varint:
                    if (!number(ignored)) return fail(here);
                    break;
                case fixed64:
                    if (size() < 8) return fail(here);
                    begin += 8;
                    break;
                case fixed32:
                    if (size() < 4) return fail(here);
                    begin += 4;
                    break;
                case open_group: ++depth; break;
                case close_group:
                    if (depth == 0) return fail(here);
                    --depth;
                    break;
                default: break;
            }
        } while (depth > 0);
        return true;
    }

    bool fail(const uint8_t* at) {
        begin = at;
        return false;
    }
};

// The parts of one message that may come in several pieces, most often one.
using Pieces = std::vector<View>;

struct Walker {
    const uint8_t* fault = nullptr;
    int64_t unknown = 0;
    Pieces values;  // of a map's entry
    Pieces lists;   // of a feature

    bool failed(const Message& message) {
        fault = message.begin;
        return false;
    }

    bool pass(Message& message) {
        ++unknown;
        return message.skip() || failed(message);
    }

    // Calls visit(entry, list) for each entry of the maps in a record.
    template <typename Visit>
    bool entries(View record, Visit&& visit) {
        for (Message top(record); top.begin < top.end;) {
            if (!top.next()) return failed(top);
            if (top.wire != sized || top.field > 2) {
                if (!pass(top)) return false;
                continue;
            }
            const bool list = top.field == 2;
            for (Message map(top.value); map.begin < map.end;) {
                if (!map.next()) return failed(map);
                if (map.wire != sized || map.field != 1) {
                    if (!pass(map)) return false;
                    continue;
                }
                if (!visit(map.value, list)) return false;
            }
        }
        return true;
    }

    // The key of an entry, and into values the pieces of its value.
    bool entry(View of, View& key) {
        key = {of.begin, of.begin};
        values.clear();
        for (Message part(of); part.begin < part.end;) {
            if (!part.next()) return failed(part);
            if (part.wire == sized && part.field == 1) {
                key = part.value;
            } else if (part.wire == sized && part.field == 2) {
                values.push_back(part.value);
            } else if (!pass(part)) {
                return false;
            }
        }
        return true;
    }

    // The kind of a feature, and into lists the pieces of its list. The kind that comes last counts.
    bool feature(View of, ExampleKind& kind) {
        for (Message part(of); part.begin < part.end;) {
            if (!part.next()) return failed(part);
            if (part.wire != sized || part.field > 3) {
                if (!pass(part)) return false;
                continue;
            }
            const auto list_kind = static_cast<ExampleKind>(part.field);
            if (list_kind != kind) lists.clear();
            kind = list_kind;
            lists.push_back(part.value);
        }
        return true;
    }

    bool feature(const Pieces& pieces, ExampleKind& kind) {
        kind = ExampleKind::none;
        lists.clear();
        for (const View& piece : pieces) {
            if (!feature(piece, kind)) return false;
        }
        return true;
    }

    // Hands the values of the lists to the sink.
    template <typename Sink>
    bool deliver(ExampleKind kind, Sink& sink) {
        for (const View& piece : lists) {
            for (Message list(piece); list.begin < list.end;) {
                const uint8_t* const here = list.begin;
                if (!list.next()) return failed(list);
                if (list.field != 1) {
                    if (!pass(list)) return false;
                    continue;
                }
                bool good = true;
                if (kind == ExampleKind::bytes && list.wire == sized) {
                    sink.bytes(list.value);
                } else if (kind == ExampleKind::floats && list.wire == sized) {
                    good = list.value.size() % 4 == 0;
                    if (good) sink.floats(list.value);
                } else if (kind == ExampleKind::floats && list.wire == fixed32) {
                    good = list.size() >= 4;
                    if (good) sink.floats({list.begin, list.begin + 4});
                    if (good) list.begin += 4;
                } else if (kind == ExampleKind::ints && list.wire == sized) {
                    good = sink.ints(list.value);
                } else if (kind == ExampleKind::ints && list.wire == varint) {
                    uint64_t number = 0;
                    good = list.number(number);
                    if (good) sink.integer(number);
                } else if (!pass(list)) {
                    return false;
                }
                if (!good) {
                    fault = here;
                    return false;
                }
            }
        }
        return true;
    }

    // Calls visit(feature) for each step of a feature list whose pieces are in values.
    template <typename Visit>
    bool steps(Visit&& visit) {
        for (const View& piece : values) {
            for (Message list(piece); list.begin < list.end;) {
                if (!list.next()) return failed(list);
                if (list.wire != sized || list.field != 1) {
                    if (!pass(list)) return false;
                    continue;
                }
                if (!visit(list.value)) return false;
            }
        }
        return true;
    }
};

struct Counter {
    int64_t value_count = 0;
    void bytes(View) { ++value_count; }
    void floats(View packed) { value_count += static_cast<int64_t>(packed.size() / 4); }
    void integer(uint64_t) { ++value_count; }
    bool ints(View packed) {
        if (packed.size() == 0) return true;
        // Each number ends with the byte that has no top bit.
        for (const uint8_t* p = packed.begin; p < packed.end; ++p) value_count += *p < 0x80;
        return packed.end[-1] < 0x80;
    }
};

struct Keeper {
    ExampleColumn& column;
    const uint8_t* base;
    int64_t value_count = 0;

    void bytes(View value) {
        column.runs.push_back(value.begin - base);
        column.runs.push_back(static_cast<int64_t>(value.size()));
        ++value_count;
    }
    void floats(View packed) {
        if (packed.size() == 0) return;
        const size_t had = column.floats.size();
        column.floats.resize(had + packed.size() / 4);
        std::memcpy(column.floats.data() + had, packed.begin, packed.size());
        value_count += static_cast<int64_t>(packed.size() / 4);
    }
    void integer(uint64_t number) {
        column.ints.push_back(static_cast<int64_t>(number));
        ++value_count;
    }
    bool ints(View packed) {
        const size_t had = column.ints.size();
        // No number takes less than a byte.
        column.ints.resize(had + packed.size());
        int64_t* out = column.ints.data() + had;
        Message list(packed);
        while (list.begin < list.end) {
            uint64_t number = 0;
            if (!list.number(number)) return false;
            *out++ = static_cast<int64_t>(number);
        }
        const auto count = static_cast<size_t>(out - (column.ints.data() + had));
        column.ints.resize(had + count);
        value_count += static_cast<int64_t>(count);
        return true;
    }
};

uint64_t hash_of(std::string_view name) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
    return hash ^ (hash >> 32);
}

// Name and list → number of the request, by open addressing.
class Lookup {
public:
    explicit Lookup(const std::vector<ExampleRequest>& requests) : requests_(requests) {
        const size_t room = std::bit_ceil(requests.size() * 2 + 2);
        mask_ = room - 1;
        slots_.assign(room, -1);
        for (size_t w = 0; w < requests.size(); ++w) {
            size_t at = hash_of(requests[w].name) & mask_;
            while (slots_[at] >= 0) at = (at + 1) & mask_;
            slots_[at] = static_cast<int32_t>(w);
        }
    }

    int32_t find(std::string_view name, bool list) const {
        for (size_t at = hash_of(name) & mask_;; at = (at + 1) & mask_) {
            const int32_t index = slots_[at];
            if (index < 0) return -1;
            const ExampleRequest& request = requests_[static_cast<size_t>(index)];
            if (request.list == list && request.name == name) return index;
        }
    }

private:
    const std::vector<ExampleRequest>& requests_;
    std::vector<int32_t> slots_;
    size_t mask_ = 0;
};

// The values of one feature of one record, whose pieces are in walker.values.
bool keep(Walker& walker, const ExampleRequest& request, const uint8_t* base, ExampleColumn& column) {
    const auto take = [&](ExampleKind kind, int64_t& count) {
        Keeper keeper{column, base};
        Counter counter;
        const bool wished = request.kind == ExampleKind::none || request.kind == kind;
        const bool good = wished ? walker.deliver(kind, keeper) : walker.deliver(kind, counter);
        count = wished ? keeper.value_count : counter.value_count;
        return good;
    };
    ExampleKind kind = ExampleKind::none;
    int64_t count = 0;
    if (!request.list) {
        if (!walker.feature(walker.values, kind) || !take(kind, count)) return false;
        column.kind.push_back(static_cast<int8_t>(kind));
        column.count.push_back(kind == ExampleKind::none ? -1 : count);
        return true;
    }
    ExampleKind all = ExampleKind::none;
    const bool good = walker.steps([&](View step) {
        kind = ExampleKind::none;
        walker.lists.clear();
        int64_t inside = 0;
        if (!walker.feature(step, kind) || !take(kind, inside)) return false;
        if (kind != ExampleKind::none && all != kind) all = all == ExampleKind::none ? kind : ExampleKind::mixed;
        column.steps.push_back(inside);
        ++count;
        return true;
    });
    column.kind.push_back(static_cast<int8_t>(all));
    column.count.push_back(count);
    return good;
}

}  // namespace

ExampleBatch read_examples(const uint8_t* data, const int64_t* starts, const int64_t* sizes, size_t n,
                           const std::vector<ExampleRequest>& requests) {
    ExampleBatch batch;
    batch.columns.resize(requests.size());
    for (ExampleColumn& column : batch.columns) {
        column.kind.reserve(n);
        column.count.reserve(n);
    }
    const Lookup lookup(requests);
    Walker walker;
    struct Match {
        View entry, value;
        bool plain = false;  // the entry is a key and a value and nothing else, as good as always
    };
    std::vector<Match> matches(requests.size());
    for (size_t i = 0; i < n; ++i) {
        std::fill(matches.begin(), matches.end(), Match{});
        const View record{data + starts[i], data + starts[i] + sizes[i]};
        bool good = walker.entries(record, [&](View entry, bool list) {
            Match now{entry, {}, false};
            View key;
            Message part(entry);
            if (part.begin < part.end && part.next() && part.field == 1 && part.wire == sized) {
                key = part.value;
                now.plain = part.begin < part.end && part.next() && part.field == 2 && part.wire == sized &&
                            part.begin == part.end;
                now.value = part.value;
            }
            if (!now.plain && !walker.entry(entry, key)) return false;
            const int32_t request = lookup.find(key.text(), list);
            if (request >= 0) matches[static_cast<size_t>(request)] = now;
            return true;
        });
        for (size_t w = 0; good && w < requests.size(); ++w) {
            ExampleColumn& column = batch.columns[w];
            if (matches[w].entry.begin == nullptr) {
                column.kind.push_back(0);
                column.count.push_back(-1);
                continue;
            }
            View key;
            if (matches[w].plain) {
                walker.values.assign(1, matches[w].value);
            } else {
                good = walker.entry(matches[w].entry, key);
            }
            good = good && keep(walker, requests[w], data, column);
        }
        if (!good) {
            batch.bad_row = static_cast<int64_t>(i);
            batch.bad_at = walker.fault - data;
            return batch;
        }
    }
    return batch;
}

namespace {

// One feature of a record.
struct Seen {
    View key;
    bool list = false;
    ExampleKind kind = ExampleKind::none;
    int64_t count = 0;
    int64_t step_fewest = -1, step_most = -1;
};

bool see(Walker& walker, View entry, bool list, Seen& seen) {
    seen = {};
    seen.list = list;
    if (!walker.entry(entry, seen.key)) return false;
    if (!list) {
        Counter counter;
        if (!walker.feature(walker.values, seen.kind) || !walker.deliver(seen.kind, counter)) return false;
        seen.count = counter.value_count;
        return true;
    }
    return walker.steps([&](View step) {
        ExampleKind kind = ExampleKind::none;
        Counter counter;
        walker.lists.clear();
        if (!walker.feature(step, kind) || !walker.deliver(kind, counter)) return false;
        if (kind != ExampleKind::none && seen.kind != kind) {
            seen.kind = seen.kind == ExampleKind::none ? kind : ExampleKind::mixed;
        }
        seen.step_fewest = seen.count == 0 ? counter.value_count : std::min(seen.step_fewest, counter.value_count);
        seen.step_most = std::max(seen.step_most, counter.value_count);
        ++seen.count;
        return true;
    });
}

void widen(int64_t& fewest, int64_t& most, int64_t low, int64_t high) {
    if (low < 0) return;
    fewest = fewest < 0 ? low : std::min(fewest, low);
    most = std::max(most, high);
}

}  // namespace

struct ExampleSurvey::State {
    struct Hash {
        using is_transparent = void;
        size_t operator()(std::string_view name) const { return hash_of(name); }
    };
    struct Known {
        ExampleFeature feature;
        Seen now;
        int64_t row = -1;
    };
    using Names = std::unordered_map<std::string, size_t, Hash, std::equal_to<>>;

    Walker walker;
    std::vector<Known> known;
    Names names[2];
    std::vector<Seen> seen;
    std::vector<size_t> touched;

    // The known feature of this name; -1 when there are too many.
    int64_t of(std::string_view name, bool list) {
        Names& map = names[list ? 1 : 0];
        const auto entry = map.find(name);
        if (entry != map.end()) return static_cast<int64_t>(entry->second);
        if (known.size() >= most_names) return -1;
        Known one;
        one.feature.name = name;
        one.feature.list = list;
        known.push_back(std::move(one));
        map.emplace(std::string(name), known.size() - 1);
        return static_cast<int64_t>(known.size() - 1);
    }
};

ExampleSurvey::ExampleSurvey() : state_(std::make_unique<State>()) {}
ExampleSurvey::~ExampleSurvey() = default;

int64_t ExampleSurvey::add(const uint8_t* data, const int64_t* starts, const int64_t* sizes, size_t n) {
    State& state = *state_;
    for (size_t i = 0; i < n; ++i) {
        // Nothing of a record is counted before all of it is found to be good.
        state.seen.clear();
        state.touched.clear();
        state.walker.unknown = 0;
        const View record{data + starts[i], data + starts[i] + sizes[i]};
        bool good = state.walker.entries(
            record, [&](View entry, bool list) { return see(state.walker, entry, list, state.seen.emplace_back()); });
        for (size_t s = 0; good && s < state.seen.size(); ++s) {
            const int64_t which = state.of(state.seen[s].key.text(), state.seen[s].list);
            good = which >= 0;
            if (!good) break;
            State::Known& known = state.known[static_cast<size_t>(which)];
            if (known.row != records) state.touched.push_back(static_cast<size_t>(which));
            known.row = records;
            known.now = state.seen[s];
        }
        if (!good) return static_cast<int64_t>(i);
        bool any = false;
        for (const size_t which : state.touched) {
            ExampleFeature& feature = state.known[which].feature;
            const Seen& now = state.known[which].now;
            // A feature of no kind is as good as none.
            if (now.kind == ExampleKind::none && !now.list) continue;
            any = true;
            ++feature.present;
            feature.kinds |= 1u << static_cast<unsigned>(now.kind);
            if (feature.first == ExampleKind::none) feature.first = now.kind;
            const bool other = now.kind != ExampleKind::none && now.kind != feature.first;
            if (feature.other < 0 && (other || now.kind == ExampleKind::mixed)) feature.other = records;
            widen(feature.fewest, feature.most, now.count, now.count);
            widen(feature.step_fewest, feature.step_most, now.step_fewest, now.step_most);
        }
        unknown += state.walker.unknown;
        foreign += state.walker.unknown > 0 && !any;
        ++records;
    }
    return -1;
}

std::vector<ExampleFeature> ExampleSurvey::features() const {
    std::vector<ExampleFeature> features;
    for (const State::Known& known : state_->known) {
        if (known.feature.present > 0) features.push_back(known.feature);
    }
    std::sort(features.begin(), features.end(), [](const ExampleFeature& a, const ExampleFeature& b) {
        return a.list != b.list ? b.list : a.name < b.name;
    });
    return features;
}

namespace {

size_t varint_size(uint64_t number) { return (static_cast<size_t>(std::bit_width(number | 1)) + 6) / 7; }

void put(std::vector<uint8_t>& out, uint64_t number) {
    for (; number >= 0x80; number >>= 7) out.push_back(static_cast<uint8_t>(number | 0x80));
    out.push_back(static_cast<uint8_t>(number));
}

void put_head(std::vector<uint8_t>& out, uint32_t field, size_t size) {
    put(out, field << 3 | sized);
    put(out, size);
}

size_t sized_size(size_t size) { return 1 + varint_size(size) + size; }

constexpr size_t most_message = INT32_MAX;

struct Part {
    const ExampleSource* source;
    size_t first, runs;  // which runs are its values
    size_t packed;       // bytes of the numbers as they will stand
    size_t list;         // bytes of the list message
    size_t entry;        // bytes of the map's entry
};

int64_t load_int(const uint8_t* p) {
    int64_t value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

void measure(Part& part) {
    const ExampleSource& source = *part.source;
    part.packed = part.list = 0;
    if (source.kind == ExampleKind::bytes) {
        for (size_t r = part.first; r < part.first + part.runs; ++r) {
            part.list += sized_size(static_cast<size_t>(source.sizes[r]));
        }
    } else {
        const uint8_t* const begin = source.data + source.starts[part.first];
        const auto size = static_cast<size_t>(source.sizes[part.first]);
        if (source.kind == ExampleKind::floats) part.packed = size / 4 * 4;
        if (source.kind == ExampleKind::ints) {
            for (size_t at = 0; at + 8 <= size; at += 8) {
                part.packed += varint_size(static_cast<uint64_t>(load_int(begin + at)));
            }
        }
        // A packed field of no numbers is left out.
        part.list = part.packed > 0 ? sized_size(part.packed) : 0;
    }
    part.entry = sized_size(source.name.size()) + sized_size(sized_size(part.list));
}

void write(std::vector<uint8_t>& out, const Part& part) {
    const ExampleSource& source = *part.source;
    put_head(out, 1, part.entry);
    put_head(out, 1, source.name.size());
    out.insert(out.end(), source.name.begin(), source.name.end());
    put_head(out, 2, sized_size(part.list));
    put_head(out, static_cast<uint32_t>(source.kind), part.list);
    if (source.kind == ExampleKind::bytes) {
        for (size_t r = part.first; r < part.first + part.runs; ++r) {
            const uint8_t* const begin = source.data + source.starts[r];
            put_head(out, 1, static_cast<size_t>(source.sizes[r]));
            out.insert(out.end(), begin, begin + source.sizes[r]);
        }
        return;
    }
    if (part.packed == 0) return;
    const uint8_t* const begin = source.data + source.starts[part.first];
    put_head(out, 1, part.packed);
    if (source.kind == ExampleKind::floats) {
        out.insert(out.end(), begin, begin + part.packed);
        return;
    }
    for (int64_t at = 0; at + 8 <= source.sizes[part.first]; at += 8) {
        put(out, static_cast<uint64_t>(load_int(begin + at)));
    }
}

}  // namespace

std::vector<uint8_t> write_examples(std::vector<ExampleSource> sources, size_t n, int64_t* offsets) {
    std::sort(sources.begin(), sources.end(),
              [](const ExampleSource& a, const ExampleSource& b) { return a.name < b.name; });
    std::vector<uint8_t> out;
    std::vector<size_t> next(sources.size(), 0);  // the first run of the record
    std::vector<Part> parts;
    for (size_t i = 0; i < n; ++i) {
        offsets[i] = static_cast<int64_t>(out.size());
        parts.clear();
        size_t features = 0;
        for (size_t s = 0; s < sources.size(); ++s) {
            const ExampleSource& source = sources[s];
            const int64_t runs = source.counts != nullptr ? source.counts[i] : 1;
            const size_t first = next[s];
            next[s] += runs > 0 ? static_cast<size_t>(runs) : 0;
            if (runs < 0 || (source.counts == nullptr && source.sizes[first] < 0)) continue;
            Part part{&source, first, static_cast<size_t>(runs), 0, 0, 0};
            measure(part);
            features += sized_size(part.entry);
            parts.push_back(part);
        }
        if (features > most_message) throw std::length_error("the Example exceeds 2 GiB, the most that protobuf holds");
        put_head(out, 1, features);
        for (const Part& part : parts) write(out, part);
    }
    offsets[n] = static_cast<int64_t>(out.size());
    return out;
}

}  // namespace batchplant
