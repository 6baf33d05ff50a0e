#include "chunks.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>

#ifdef BATCHPLANT_LIBDEFLATE
#include <libdeflate.h>
#endif

#include "crc.hpp"

namespace batchplant {
namespace {

// Memory of a thread for stored bytes and for what lies between two steps.
class Scratch {
public:
    uint8_t* room(size_t size) {
        if (size > size_ || size_ > most) {
            memory_ = std::make_unique_for_overwrite<uint8_t[]>(size);
            size_ = size;
        }
        return memory_.get();
    }

private:
    static constexpr size_t most = size_t{4} << 20;  // more is given back by the next chunk
    std::unique_ptr<uint8_t[]> memory_;
    size_t size_ = 0;
};

uint32_t little_endian(const uint8_t* data) {
    return data[0] | data[1] << 8 | data[2] << 16 | static_cast<uint32_t>(data[3]) << 24;
}

bool inflate([[maybe_unused]] const uint8_t* data, [[maybe_unused]] size_t size, [[maybe_unused]] uint8_t* out,
             [[maybe_unused]] size_t out_size) {
#ifdef BATCHPLANT_LIBDEFLATE
    struct Free {
        void operator()(libdeflate_decompressor* memory) const { libdeflate_free_decompressor(memory); }
    };
    thread_local const std::unique_ptr<libdeflate_decompressor, Free> decompressor(libdeflate_alloc_decompressor());
    if (decompressor == nullptr || size < 2) return false;
    const bool gzip = data[0] == 0x1f && data[1] == 0x8b;
    const auto run = gzip ? libdeflate_gzip_decompress_ex : libdeflate_zlib_decompress_ex;
    size_t used = 0;
    return run(decompressor.get(), data, size, out, out_size, &used, nullptr) == LIBDEFLATE_SUCCESS && used == size;
#else
    return false;
#endif
}

// The sums of HDF5, modulo 65535, of big-endian words; an odd byte is the high one of a last word.
bool fletcher32_is(const uint8_t* data, size_t size, uint32_t stated) {
    uint64_t low = 0, high = 0;
    for (size_t at = 0; at < size;) {
        // So many words do not overflow the sums.
        const size_t end = std::min(size, at + 2 * 8192);
        for (; at + 1 < end; at += 2) high += low += static_cast<uint64_t>(data[at]) << 8 | data[at + 1];
        if (at + 1 == size) high += low += static_cast<uint64_t>(data[at++]) << 8;
        low %= 65535;
        high %= 65535;
    }
    return low == (stated & 0xffff) % 65535 && high == (stated >> 16) % 65535;
}

template <size_t Item>
void unshuffle(const uint8_t* data, size_t count, uint8_t* out) {
    for (size_t i = 0; i < count; ++i) {
        for (size_t byte = 0; byte < Item; ++byte) out[i * Item + byte] = data[byte * count + i];
    }
}

void unshuffle(const uint8_t* data, size_t size, size_t item, uint8_t* out) {
    const size_t count = size / item;
    switch (item) {
        case 2: unshuffle<2>(data, count, out); break;
        case 4: unshuffle<4>(data, count, out); break;
        case 8: unshuffle<8>(data, count, out); break;
        default:
            for (size_t byte = 0; byte < item; ++byte) {
                for (size_t i = 0; i < count; ++i) out[i * item + byte] = data[byte * count + i];
            }
    }
    std::copy(data + count * item, data + size, out + count * item);
}

void swap_bytes(uint8_t* values, size_t size, size_t item) {
    for (size_t at = 0; at + item <= size; at += item) std::reverse(values + at, values + at + item);
}

using Blosc = int (*)(const void* data, void* out, size_t out_size, int threads);
using Zstd = size_t (*)(void* out, size_t out_size, const void* data, size_t size);
using Lz4 = int (*)(const char* data, char* out, int size, int out_size);

bool unpack(ChunkStep step, size_t address, const uint8_t* data, size_t size, uint8_t* out, size_t out_size) {
    constexpr size_t most = std::numeric_limits<int>::max();
    switch (step) {
        case ChunkStep::blosc:
            // The library believes its header.
            return size >= 16 && out_size <= most && little_endian(data + 12) == size && data[3] != 0 &&
                   little_endian(data + 4) == out_size &&
                   reinterpret_cast<Blosc>(address)(data, out, out_size, 1) == static_cast<int>(out_size);
        case ChunkStep::zstd: return reinterpret_cast<Zstd>(address)(out, out_size, data, size) == out_size;
        case ChunkStep::lz4:
            return size > 4 && size - 4 <= most && out_size <= most && little_endian(data) == out_size &&
                   reinterpret_cast<Lz4>(address)(reinterpret_cast<const char*>(data + 4), reinterpret_cast<char*>(out),
                                                  static_cast<int>(size - 4),
                                                  static_cast<int>(out_size)) == static_cast<int>(out_size);
        case ChunkStep::deflate: return inflate(data, size, out, out_size);
        default: return false;
    }
}

}  // namespace

bool decode_chunk(const ChunkCoding& coding, const uint8_t* data, size_t size, uint8_t* out) {
    thread_local Scratch scratch;
    const size_t before = coding.prefix.size();
    if (size < before || !std::equal(coding.prefix.begin(), coding.prefix.end(), data)) return false;
    data += before;
    size -= before;
    bool in_scratch = false;
    for (size_t number = 0; number < coding.steps.size(); ++number) {
        const auto [step, argument] = coding.steps[number];
        const bool last = number + 1 == coding.steps.size();
        if (step == ChunkStep::crc32c || step == ChunkStep::fletcher32) {
            if (size < 4) return false;
            size -= 4;
            const uint32_t stated = little_endian(data + size);
            const bool same =
                step == ChunkStep::crc32c ? crc32c(data, size) == stated : fletcher32_is(data, size, stated);
            if (!same) return false;
        } else if (step == ChunkStep::shuffle) {
            if (!last || size != coding.bytes || argument < 1) return false;
            unshuffle(data, size, argument, out);
            data = out;
        } else {
            // What is shuffled besides goes to its place in the next step. There is scratch for one step only.
            if (in_scratch && !last) return false;
            uint8_t* const to = last ? out : scratch.room(coding.bytes);
            if (!unpack(step, argument, data, size, to, coding.bytes)) return false;
            in_scratch = !last;
            data = to;
            size = coding.bytes;
        }
    }
    if (size != coding.bytes) return false;
    if (data != out) std::copy(data, data + size, out);
    if (coding.swap > 1) swap_bytes(out, size, coding.swap);
    return true;
}

bool decode_chunk_file(const ChunkCoding& coding, const char* path, int64_t start, int64_t size, uint8_t* out) {
    thread_local Scratch scratch;
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return false;
    struct stat facts;
    bool good = fstat(file, &facts) == 0 && S_ISREG(facts.st_mode) && start >= 0 && start <= facts.st_size;
    const int64_t rest = good ? facts.st_size - start : 0;
    const size_t wanted = static_cast<size_t>(size < 0 ? rest : size);
    // Stored bytes are seldom more than the values, and never many more.
    good = good && wanted <= static_cast<size_t>(rest) && wanted <= 2 * coding.bytes + (size_t{1} << 16);
    uint8_t* const data = good ? scratch.room(wanted) : nullptr;
    for (size_t have = 0; good && have < wanted;) {
        const ssize_t got = pread(file, data + have, wanted - have, start + static_cast<int64_t>(have));
        if (got < 0 && errno == EINTR) continue;
        good = got > 0;
        have += good ? static_cast<size_t>(got) : 0;
    }
    close(file);
    return good && decode_chunk(coding, data, wanted, out);
}

ChunkBoxes::ChunkBoxes(const int64_t* boxes, size_t n, std::vector<int64_t> steps_of_axes,
                       const std::vector<int64_t>& chunk_shape)
    : axes(chunk_shape.size()), count(n), steps(std::move(steps_of_axes)) {
    if (steps.size() != axes) throw std::invalid_argument("a step for each axis is needed");
    for (size_t axis = 0; axis < axes; ++axis) {
        if (chunk_shape[axis] < 1 || steps[axis] < 1) throw std::invalid_argument("chunks and steps are at least 1");
    }
    struct Numbered {
        int64_t number;
        ChunkPart part;
    };
    std::vector<std::vector<Numbered>> along(axes);
    std::vector<int64_t> chunk_of;  // indices of each piece's chunk
    for (size_t number = 0; number < n; ++number) {
        const int64_t *starts = boxes + 3 * axes * number, *counts = starts + axes, *targets = counts + axes;
        bool empty = false;
        for (size_t axis = 0; axis < axes; ++axis) {
            along[axis].clear();
            const int64_t step = steps[axis], size = chunk_shape[axis];
            if (starts[axis] < 0 || counts[axis] < 0 || targets[axis] < 0)
                throw std::invalid_argument("a negative box");
            for (int64_t done = 0; done < counts[axis];) {
                const int64_t at = starts[axis] + done * step, inside = at % size;
                const int64_t count = std::min(counts[axis] - done, (size - inside - 1) / step + 1);
                along[axis].push_back({at / size, {inside, count, targets[axis] + done}});
                done += count;
            }
            empty = empty || along[axis].empty();
        }
        if (empty) continue;
        std::vector<size_t> at(axes, 0);
        for (size_t axis = axes + 1; axis > 0;) {
            for (size_t i = 0; i < axes; ++i) {
                chunk_of.push_back(along[i][at[i]].number);
                parts.push_back(along[i][at[i]].part);
            }
            box.push_back(static_cast<int64_t>(number));
            for (axis = axes; axis > 0 && ++at[axis - 1] == along[axis - 1].size(); --axis) at[axis - 1] = 0;
        }
    }
    // By chunk.
    std::vector<size_t> order(box.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto compare = [&](size_t a, size_t b) {
        const int64_t *left = chunk_of.data() + a * axes, *right = chunk_of.data() + b * axes;
        return std::lexicographical_compare(left, left + axes, right, right + axes);
    };
    if (n > 1) {
        std::stable_sort(order.begin(), order.end(), compare);
        std::vector<int64_t> box_before(box.size());
        std::vector<ChunkPart> parts_before(parts.size());
        box.swap(box_before);
        parts.swap(parts_before);
        for (size_t i = 0; i < order.size(); ++i) {
            box[i] = box_before[order[i]];
            std::copy_n(parts_before.data() + order[i] * axes, axes, parts.data() + i * axes);
        }
    }
    for (size_t i = 0; i < order.size(); ++i) {
        if (i > 0 && !compare(order[i - 1], order[i])) continue;
        firsts.push_back(i);
        const auto index = chunk_of.begin() + static_cast<std::ptrdiff_t>(order[i] * axes);
        indices.insert(indices.end(), index, index + static_cast<std::ptrdiff_t>(axes));
    }
    firsts.push_back(order.size());
}

namespace {

template <typename Copy>
void copy_lines(const uint8_t* from, uint8_t* to, int64_t from_step, int64_t to_step, int64_t count, Copy&& copy) {
    for (int64_t i = 0; i < count; ++i, from += from_step, to += to_step) copy(to, from);
}

// Runs of values that lie at equal distances.
void copy_runs_at(const uint8_t* from, uint8_t* to, int64_t from_step, int64_t to_step, int64_t count, size_t run) {
    const auto fixed = [&](auto size) {
        copy_lines(from, to, from_step, to_step, count,
                   [](uint8_t* a, const uint8_t* b) { std::memcpy(a, b, decltype(size)::value); });
    };
    switch (run) {
        case 1: return fixed(std::integral_constant<size_t, 1>{});
        case 2: return fixed(std::integral_constant<size_t, 2>{});
        case 4: return fixed(std::integral_constant<size_t, 4>{});
        case 8: return fixed(std::integral_constant<size_t, 8>{});
        case 64: return fixed(std::integral_constant<size_t, 64>{});
        default:
            copy_lines(from, to, from_step, to_step, count,
                       [run](uint8_t* a, const uint8_t* b) { std::memcpy(a, b, run); });
    }
}

}  // namespace

bool copy_chunk(const ChunkBoxes& boxes, size_t chunk, const StridedArray& values, const StridedArray& out,
                const int64_t* rows, size_t itemsize) {
    const size_t axes = boxes.axes;
    // Axes of the output before those of the boxes.
    const size_t before = rows == nullptr ? 0 : 1;
    if (values.shape.size() != axes || out.shape.size() != axes + before) return false;
    std::vector<int64_t> at(axes), counts(axes), from_step(axes), to_step(axes);
    for (size_t piece = boxes.firsts[chunk]; piece < boxes.firsts[chunk + 1]; ++piece) {
        const ChunkPart* part = boxes.parts.data() + piece * axes;
        const uint8_t* from = values.data;
        uint8_t* to = out.data;
        if (rows != nullptr) {
            const int64_t row = rows[boxes.box[piece]];
            if (row < 0 || row >= out.shape[0]) return false;
            to += row * out.strides[0];
        }
        for (size_t axis = 0; axis < axes; ++axis) {
            const auto [inside, count, target] = part[axis];
            if (inside + (count - 1) * boxes.steps[axis] >= values.shape[axis]) return false;
            if (target + count > out.shape[axis + before]) return false;
            from += inside * values.strides[axis];
            to += target * out.strides[axis + before];
            counts[axis] = count;
            from_step[axis] = values.strides[axis] * boxes.steps[axis];
            to_step[axis] = out.strides[axis + before];
            at[axis] = 0;
        }
        // Values that lie one after another on both sides are copied at once.
        int64_t run = static_cast<int64_t>(itemsize);
        size_t inner = axes;
        while (inner > 0 && (counts[inner - 1] == 1 || (from_step[inner - 1] == run && to_step[inner - 1] == run))) {
            run *= counts[--inner];
        }
        if (inner == 0) {
            std::memcpy(to, from, static_cast<size_t>(run));
            continue;
        }
        const size_t line = inner - 1;
        for (size_t axis = 1; axis > 0;) {
            copy_runs_at(from, to, from_step[line], to_step[line], counts[line], static_cast<size_t>(run));
            for (axis = line; axis > 0; --axis) {
                from += from_step[axis - 1];
                to += to_step[axis - 1];
                if (++at[axis - 1] < counts[axis - 1]) break;
                from -= from_step[axis - 1] * counts[axis - 1];
                to -= to_step[axis - 1] * counts[axis - 1];
                at[axis - 1] = 0;
            }
        }
    }
    return true;
}

}  // namespace batchplant
