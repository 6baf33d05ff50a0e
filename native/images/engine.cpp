#include "engine.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <random>
#include <span>
#include <stdexcept>

#include "../io/bytes.hpp"
#include "../io/fetch.hpp"
#include "baseline.hpp"
#include "png.hpp"
#include "turn.hpp"
#include "webp.hpp"

namespace batchplant {
namespace {

using Clock = std::chrono::steady_clock;

struct Cell {
    const uint8_t* data;
    size_t size;
    const uint8_t* end;  // of the buffer that it lies in
};

template <typename Job>
Cell find_cell(const Job& job, size_t index) {
    const int32_t base = job.base[index];
    const int64_t start = job.start[index], size = job.size[index];
    if (base < 0 || static_cast<size_t>(base) >= job.bases.size()) {
        throw std::invalid_argument("there is no buffer " + std::to_string(base));
    }
    const Buffer& buffer = job.bases[static_cast<size_t>(base)];
    if (!run_fits(start, size, buffer.size)) {
        throw std::invalid_argument(std::to_string(size) + " bytes from " + std::to_string(start) +
                                    " on leave the buffer, which has " + std::to_string(buffer.size));
    }
    if (size == 0) throw std::invalid_argument("no bytes");
    return {buffer.data + start, static_cast<size_t>(size), buffer.data + buffer.size};
}

bool is_raw(const DecodeJob& job, size_t index) { return job.shape != nullptr && job.shape[3 * index] != 0; }

// Shape of raw pixels; all zeros for an encoded image.
ImageShape raw_shape(const DecodeJob& job, size_t index, size_t size) {
    if (job.shape == nullptr) return {};
    const int32_t* given = job.shape + 3 * index;
    const int64_t height = given[0], width = given[1], channels = given[2];
    if (height == 0 && width == 0 && channels == 0) return {};
    // Only when it is needed: made for each image it would take a tenth of the time of a copy.
    const auto name = [&] {
        return std::to_string(height) + " x " + std::to_string(width) + " x " + std::to_string(channels);
    };
    if (height < 1 || width < 1 || channels < 1) throw std::invalid_argument("no image has the shape " + name());
    // The second product could not be formed for every three numbers, so the first is divided into the size.
    const auto pixels = static_cast<uint64_t>(height * width);
    const auto samples = static_cast<uint64_t>(channels);
    if (size % pixels != 0 || size / pixels != samples) {
        throw std::invalid_argument(std::to_string(size) + " bytes cannot be pixels of the shape " + name());
    }
    return {static_cast<size_t>(height), static_cast<size_t>(width), static_cast<size_t>(channels)};
}

std::string text(double value) {
    std::string digits = std::to_string(value);
    digits.erase(digits.find_last_not_of('0') + 1);
    if (digits.back() == '.') digits.pop_back();
    return digits;
}

Box find_box(const DecodeJob& job, size_t index, const ImageShape& shape) {
    const auto width = static_cast<double>(shape.width), height = static_cast<double>(shape.height);
    const Box whole{0, 0, width, height};
    if (job.box == nullptr) return whole;
    const double* given = job.box + 4 * index;
    const Box box{given[0], given[1], given[2], given[3]};
    if (box.x0 == 0 && box.y0 == 0 && box.x1 == 0 && box.y1 == 0) return whole;
    // Written so that a NaN fails.
    const bool fits =
        box.x0 >= 0 && box.y0 >= 0 && box.x1 <= width && box.y1 <= height && box.x0 < box.x1 && box.y0 < box.y1;
    // Pillow's boxes are in single precision, where one thinner than this might be empty.
    constexpr double thinnest = 1.0 / 256;
    if (!fits || box.width() < thinnest || box.height() < thinnest) {
        throw std::invalid_argument("the box (" + text(box.x0) + ", " + text(box.y0) + ", " + text(box.x1) + ", " +
                                    text(box.y1) + ") is not in the image of " + std::to_string(shape.width) + " x " +
                                    std::to_string(shape.height) + " pixels");
    }
    return box;
}

Place place_of(const DecodeJob& job, size_t index) {
    if (job.place == nullptr) return {0, 0, job.output.height, job.output.width};
    const auto at = [given = job.place + 4 * index](size_t i) { return static_cast<size_t>(given[i]); };
    return {at(0), at(1), at(2), at(3)};
}

// The most that a JPEG can be shrunk by while its box is still at least as large as what it becomes.
size_t best_shrink(const Box& box, const Resampler::Task& task) {
    for (const size_t shrink : {8, 4, 2}) {
        const auto factor = static_cast<double>(shrink);
        if (box.width() >= factor * static_cast<double>(task.width) &&
            box.height() >= factor * static_cast<double>(task.height)) {
            return shrink;
        }
    }
    return 1;
}

Encoding encoding_of(const Cell& cell) {
    const auto has = [&cell](const char* magic, size_t length, size_t at = 0) {
        return cell.size >= at + length && std::memcmp(cell.data + at, magic, length) == 0;
    };
    if (has("\xFF\xD8\xFF", 3)) return Encoding::jpeg;
    if (has("\x89PNG\r\n\x1A\n", 8)) return Encoding::png;
    if (has("RIFF", 4) && has("WEBP", 4, 8)) return Encoding::webp;
    return Encoding::unknown;
}

PixelMode wanted_mode(const DecodeJob& job) {
    if (job.mode != PixelMode::unknown) return job.mode;
    constexpr PixelMode modes[] = {PixelMode::l, PixelMode::la, PixelMode::rgb, PixelMode::rgba};
    return modes[job.output.channels - 1];
}

// A polynomial at a place that nobody can know, modulo the prime 2^61 - 1: two pieces of so many bytes that somebody
// chose have the same one with a probability below 1 in 10^15.
uint64_t secret_hash(const uint8_t* data, size_t size) {
    constexpr uint64_t prime = (uint64_t{1} << 61) - 1;
    static const uint64_t secret = [] {
        std::random_device device;
        return (uint64_t{device()} << 32 | device()) % prime;
    }();
    uint64_t hash = 1;
    for (size_t i = 0; i + 4 <= size; i += 4) {
        uint32_t word;
        std::memcpy(&word, data + i, sizeof word);
        const auto product = static_cast<unsigned __int128>(hash) * secret + word;
        hash = (static_cast<uint64_t>(product) & prime) + static_cast<uint64_t>(product >> 61);
        if (hash >= prime) hash -= prime;
    }
    return hash;
}

}  // namespace

struct Engine::Worker {
    JpegDecoder jpeg;
    PngDecoder png;
    WebpDecoder webp;
    Scratch turned;
    WarpScratch warped;
    CodedPart coded;
    ScanPart scan;
    const Kernels& kernels;
    Resampler resampler;
    RowWriter::Scratch scratch;
    std::string message;
    size_t warnings = 0;
    // Read by other threads.
    std::atomic<int64_t> decode_ns{0}, resample_ns{0};
    std::atomic<size_t> baseline_jpegs{0};

    Worker(const Kernels& chosen, bool baseline)
        : jpeg(baseline ? chosen.jpeg : nullptr), kernels(chosen), resampler(chosen) {}

    // An error is left in `message`.
    Status decode(const DecodeJob& job, size_t index) noexcept {
        try {
            const auto began = Clock::now();
            if (copied(job, index)) {
                resample_ns += std::chrono::nanoseconds(Clock::now() - began).count();
                return Status::ok;
            }
            const Place place = place_of(job, index);
            if (job.place != nullptr) job.output.fill_around(index, place);
            // Nothing of the image is seen.
            if (place.height == 0 || place.width == 0) return Status::ok;
            Resampler::Task task{};
            task.width = place.width;
            task.height = place.height;
            const bool down = job.down != nullptr && job.down[index] != 0;
            const PixelView view = pixels(job, index, task);
            // Raw pixels are not decoded: all that is done to them is to resample them.
            const auto decoded = is_raw(job, index) ? began : Clock::now();
            resampler.run(view, RowWriter(job.output, index, place, down, kernels, scratch));
            decode_ns += std::chrono::nanoseconds(decoded - began).count();
            resample_ns += std::chrono::nanoseconds(Clock::now() - decoded).count();
            return Status::ok;
        } catch (const NotNative&) {
            return Status::not_native;
        } catch (const std::bad_alloc&) {
            message = "not enough memory";  // short enough to need none
        } catch (const std::exception& error) {
            message = error.what();
        }
        std::memset(job.output.image(index), 0, job.output.image_size());
        return Status::failed;
    }

    // False where the device is not to make this one.
    bool code(const CodeJob& job, size_t index, std::atomic<size_t>& used) noexcept {
        try {
            const auto began = Clock::now();
            const Cell cell = find_cell(job, index);
            jpeg.open(cell.data, cell.size);
            const auto at = [given = job.part + 4 * index](size_t i) { return static_cast<size_t>(given[i]); };
            int64_t* const row = job.table + index * job.columns();
            if (job.scans) {
                if (!jpeg.scan_part(at(0), at(1), at(2), at(3), scan)) return false;
                static_assert(sizeof scan.codes[0] <= CodeJob::code_size);
                std::array<uint8_t, 4 * CodeJob::code_size> codes{};
                for (size_t n = 0; n < scan.codes.size(); ++n) {
                    std::memcpy(codes.data() + n * CodeJob::code_size, &scan.codes[n], sizeof scan.codes[n]);
                }
                const std::span words(scan.words);
                if (!put(job, row, used, scan, scan.bits, std::span(codes), words)) return false;
                int64_t* more = row + 11;
                for (const size_t one : {scan.mcus_per_row, scan.mcu_rows, size_t{scan.to_the_end}}) {
                    *more++ = static_cast<int64_t>(one);
                }
                *more = static_cast<int64_t>(secret_hash(codes.data(), codes.size()));
            } else {
                if (!jpeg.code_part(at(0), at(1), at(2), at(3), coded)) return false;
                const std::span entries(coded.entries.data(), coded.entry_count);
                if (!put(job, row, used, coded, coded.entry_count, std::span(coded.blocks), entries)) return false;
            }
            decode_ns += std::chrono::nanoseconds(Clock::now() - began).count();
            return true;
        } catch (const std::exception&) {
            // Whoever decodes it then says what is wrong.
            return false;
        }
    }

private:
    // An image that a device is to make: its steps and two pieces behind them, and the first columns of its row.
    template <typename Found, typename First, typename Second>
    static bool put(const CodeJob& job, int64_t* row, std::atomic<size_t>& used, const Found& found, size_t count,
                    First first, Second second) {
        constexpr size_t aligned = 16, steps = sizeof found.steps;
        const size_t size = (steps + first.size_bytes() + second.size_bytes() + aligned - 1) / aligned * aligned;
        const size_t place = used.fetch_add(size);
        if (place > job.room || job.room - place < size) return false;
        uint8_t* const out = job.out + place;
        std::memcpy(out, found.steps.data(), steps);
        std::memcpy(out + steps, first.data(), first.size_bytes());
        std::memcpy(out + steps + first.size_bytes(), second.data(), second.size_bytes());
        *row++ = static_cast<int64_t>(place);
        size_t blocks = 0;
        for (const auto& extent : found.extents) blocks += extent.blocks();
        *row++ = static_cast<int64_t>(blocks);
        *row++ = static_cast<int64_t>(count);
        for (const size_t c : {0, 1}) {
            const CodedPart::Extent& extent = found.extents[c];
            for (const size_t one : {extent.first_column, extent.columns, extent.first_row, extent.rows}) {
                *row++ = static_cast<int64_t>(one);
            }
        }
        return true;
    }

    // Raw pixels that are wanted as they are need no resampler.
    bool copied(const DecodeJob& job, size_t index) {
        const Output& output = job.output;
        if (job.shape == nullptr || output.type != PixelType::uint8 || output.layout != Layout::nhwc) return false;
        if (job.place != nullptr || job.down != nullptr) return false;
        if (job.flip != nullptr && job.flip[index] != 0) return false;
        const Cell cell = find_cell(job, index);
        const ImageShape shape = raw_shape(job, index, cell.size);
        const bool same =
            shape.height == output.height && shape.width == output.width && shape.channels == output.channels;
        if (!same) return false;
        const Box box = find_box(job, index, shape);
        const bool whole = box.x0 == 0 && box.y0 == 0 && box.width() == static_cast<double>(shape.width) &&
                           box.height() == static_cast<double>(shape.height);
        if (whole) std::memcpy(output.image(index), cell.data, cell.size);
        return whole;
    }

    PixelView pixels(const DecodeJob& job, size_t index, Resampler::Task& task) {
        const Cell cell = find_cell(job, index);
        const ImageShape raw = raw_shape(job, index, cell.size);
        const Output& output = job.output;
        task.channels = output.channels;
        task.filter = job.filter;
        task.flip = job.flip != nullptr && job.flip[index] != 0;
        if (raw.height > 0) return raw_pixels(job, index, cell, raw, task);
        switch (encoding_of(cell)) {
            case Encoding::jpeg: return jpeg_pixels(job, index, cell, task);
            case Encoding::png: return other_pixels(png, job, index, cell, task);
            case Encoding::webp: return other_pixels(webp, job, index, cell, task);
            default: throw NotNative();
        }
    }

    template <typename Decoder>
    PixelView other_pixels(Decoder& decoder, const DecodeJob& job, size_t index, const Cell& cell,
                           Resampler::Task& task) {
        const ImageShape stored = decoder.open(cell.data, cell.size, job.most_pixels);
        const PixelMode mode = wanted_mode(job);
        if (!decoder.can(mode) || channels_of(mode) != task.channels) throw NotNative();
        const Turn turn = find_turn(job, index, stored);
        const Region need = plan(job, index, turn, task);
        return turn_pixels(decoder.decode(mode, turn.stored(need)), turn, need, task.channels, turned);
    }

    static Turn find_turn(const DecodeJob& job, size_t index, const ImageShape& stored) {
        return {job.orient == nullptr ? 1u : job.orient[index], stored.width, stored.height};
    }

    // The part of the image, as it is turned, that its pixels come from.
    Region plan(const DecodeJob& job, size_t index, const Turn& turn, Resampler::Task& task) {
        task.source_width = turn.width();
        task.source_height = turn.height();
        task.box = find_box(job, index, {turn.height(), turn.width(), task.channels});
        return resampler.plan(task);
    }

    PixelView raw_pixels(const DecodeJob& job, size_t index, const Cell& cell, const ImageShape& shape,
                         Resampler::Task& task) {
        if (shape.channels != task.channels) throw NotNative();
        task.box = find_box(job, index, shape);
        task.source_width = shape.width;
        task.source_height = shape.height;
        resampler.plan(task);
        return {cell.data, shape.width * shape.channels, {0, 0, shape.width, shape.height}, cell.end};
    }

    PixelView jpeg_pixels(const DecodeJob& job, size_t index, const Cell& cell, Resampler::Task& task) {
        const ImageShape stored = jpeg.open(cell.data, cell.size);
        const bool convertible = stored.channels == 1 || stored.channels == 3;
        if (!convertible || (task.channels != 1 && task.channels != 3)) throw NotNative();
        check_pixels(stored.width, stored.height, job.most_pixels);
        JpegOptions options;
        options.mode = task.channels == 1 ? JpegMode::gray : JpegMode::rgb;
        options.dct = job.dct;
        options.strict = job.strict;
        const Turn turn = find_turn(job, index, stored);
        // Shrunken and turned, pixels would not lie where they do the other way round.
        if (job.fast_scale && !turn.turns()) return shrunken_pixels(job, index, stored, options, task);
        jpeg.shape(options);
        const Region need = plan(job, index, turn, task);
        return turn_pixels(decode_part(turn.stored(need), options), turn, need, task.channels, turned);
    }

    PixelView shrunken_pixels(const DecodeJob& job, size_t index, const ImageShape& stored, JpegOptions& options,
                              Resampler::Task& task) {
        const Box box = find_box(job, index, stored);
        options.shrink = best_shrink(box, task);
        const auto factor = static_cast<double>(options.shrink);
        task.box = {box.x0 / factor, box.y0 / factor, box.x1 / factor, box.y1 / factor};
        const ImageShape shape = jpeg.shape(options);
        task.source_width = shape.width;
        task.source_height = shape.height;
        return decode_part(resampler.plan(task), options);
    }

    PixelView decode_part(const Region& need, const JpegOptions& options) {
        struct Counting {  // also when it fails
            Worker& worker;
            ~Counting() {
                worker.warnings += worker.jpeg.warnings();
                worker.baseline_jpegs = worker.jpeg.baseline_parts();
            }
        } counting{*this};
        const auto part = jpeg.decode_part(need.left, need.top, need.right, need.bottom, options, overrun);
        return {
            part.pixels, part.stride, {part.left, part.top, part.left + part.width, part.top + part.height}, part.end};
    }
};

namespace {

bool exists(const Cells& cells, size_t index) {
    const int32_t base = cells.base[index];
    return base >= 0 && static_cast<size_t>(base) < cells.bases.size() && cells.size[index] > 0 &&
           run_fits(cells.start[index], cells.size[index], cells.bases[static_cast<size_t>(base)].size);
}

}  // namespace

void prefetch(const Cells& cells) {
    std::vector<std::vector<int64_t>> starts(cells.bases.size()), sizes(cells.bases.size());
    for (size_t i = 0; i < cells.count; ++i) {
        if (!exists(cells, i)) continue;
        const auto base = static_cast<size_t>(cells.base[i]);
        starts[base].push_back(cells.start[i]);
        sizes[base].push_back(cells.size[i]);
    }
    for (size_t base = 0; base < cells.bases.size(); ++base) {
        const size_t n = starts[base].size();
        if (n == 0) continue;
        const uint8_t* data = cells.bases[base].data;
        const int64_t *from = starts[base].data(), *size = sizes[base].data();
        if (resident_fraction(data, from, size, n) < 1) will_need(data, from, size, n);
    }
}

void read_sizes(const Cells& cells, int32_t* height_width) {
    for (size_t i = 0; i < cells.count; ++i) {
        ImageHeader header;
        if (exists(cells, i)) {
            const Buffer& buffer = cells.bases[static_cast<size_t>(cells.base[i])];
            header = probe_image(buffer.data + cells.start[i], static_cast<size_t>(cells.size[i]));
        }
        height_width[2 * i] = header.height;
        height_width[2 * i + 1] = header.width;
    }
}

namespace {

// Before the pool, whose threads must not start in vain.
size_t checked(size_t threads) {
    constexpr size_t most_threads = 1024;
    if (threads < 1 || threads > most_threads) {
        throw std::invalid_argument("an engine has 1 to " + std::to_string(most_threads) + " threads, not " +
                                    std::to_string(threads));
    }
    return threads;
}

}  // namespace

Engine::Engine(size_t threads, const std::vector<int>& cpus, int nice, const Kernels& kernels, bool baseline)
    : pool_(checked(threads), cpus, nice) {
    for (size_t i = 0; i < threads; ++i) workers_.push_back(std::make_unique<Worker>(kernels, baseline));
}

Engine::~Engine() {
    if (!pool_.forked()) return;
    // Better leaked than taken apart: a thread may have been in the middle of changing one.
    for (auto& worker : workers_) static_cast<void>(worker.release());
}

DecodeResult Engine::decode(const DecodeJob& job) {
    const size_t n = job.output.images;
    DecodeResult result;
    result.status.resize(n);
    std::vector<std::string> messages(n);
    std::atomic<size_t> warnings{0};
    pool_.parallel_for(n, [&](size_t index, size_t which) noexcept {
        Worker& worker = *workers_[which];
        worker.warnings = 0;
        const Status status = worker.decode(job, index);
        result.status[index] = static_cast<int32_t>(status);
        if (status == Status::failed) messages[index].swap(worker.message);
        if (worker.warnings > 0) warnings += worker.warnings;
    });
    for (size_t i = 0; i < n; ++i) {
        if (!messages[i].empty()) result.errors.emplace_back(i, std::move(messages[i]));
    }
    result.warnings = warnings;
    return result;
}

size_t Engine::code(const CodeJob& job) {
    std::atomic<size_t> used{0};
    pool_.parallel_for(job.count, [&](size_t index, size_t which) noexcept {
        if (!workers_[which]->code(job, index, used)) job.table[index * job.columns()] = -1;
    });
    return std::min(used.load(), job.room);
}

void Engine::warp(const WarpJob& job) {
    std::atomic<bool> failed{false};
    pool_.parallel_for(job.images, [&](size_t index, size_t which) noexcept {
        try {
            batchplant::warp(job, index, workers_[which]->warped);
        } catch (const std::bad_alloc&) {
            failed = true;
        }
    });
    if (failed) throw std::bad_alloc();
}

void Engine::jitter(uint8_t* images, size_t n, size_t pixels, const Jitter* amounts) {
    pool_.parallel_for(n, [&](size_t index, size_t) noexcept {
        batchplant::jitter(images + 3 * pixels * index, pixels, amounts[index]);
    });
}

int64_t Engine::gather(const std::vector<Buffer>& bases, const Windows& windows, uint8_t* dst, size_t dst_size) {
    const size_t n = windows.count;
    size_t bytes = 0;
    for (size_t i = 0; i < n; ++i) {
        const bool known = windows.base[i] >= 0 && static_cast<size_t>(windows.base[i]) < bases.size();
        if (!known || !window_fits(windows, i, bases[static_cast<size_t>(windows.base[i])].size, dst_size)) {
            return static_cast<int64_t>(i);
        }
        bytes += static_cast<size_t>(windows.rows[i] * windows.width[i]);
    }
    // Small ones go to a thread by the handful, or handing them out would cost more than copying them.
    constexpr size_t most = 16, enough = 256 << 10;
    const size_t handful = std::clamp<size_t>(bytes > 0 ? enough * n / bytes : most, 1, most);
    pool_.parallel_for((n + handful - 1) / handful, [&](size_t group, size_t) noexcept {
        const size_t end = std::min(n, (group + 1) * handful);
        for (size_t i = group * handful; i < end; ++i) {
            const uint8_t* from = bases[static_cast<size_t>(windows.base[i])].data + windows.start[i];
            copy_window(windows, i, from, dst + windows.place[i]);
        }
    });
    return -1;
}

size_t Engine::baseline_jpegs() const {
    size_t sum = 0;
    for (const auto& worker : workers_) sum += worker->baseline_jpegs;
    return sum;
}

Seconds Engine::seconds() const {
    Seconds sum;
    for (const auto& worker : workers_) {
        sum.decode += 1e-9 * static_cast<double>(worker->decode_ns.load());
        sum.resample += 1e-9 * static_cast<double>(worker->resample_ns.load());
    }
    return sum;
}

}  // namespace batchplant
