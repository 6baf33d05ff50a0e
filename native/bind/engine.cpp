#include "../images/engine.hpp"

#include <nanobind/stl/pair.h>

#include "bind.hpp"

namespace batchplant {
namespace {

using Shapes = nb::ndarray<const int32_t, nb::shape<-1, 3>, nb::c_contig, nb::device::cpu>;
using Boxes = nb::ndarray<const double, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;
using Floats = Borrowed<float>;
using Parts = nb::ndarray<const int64_t, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;
using Flags = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Places = nb::ndarray<const int32_t, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;
using Pixels = nb::ndarray<const uint8_t, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using MutablePixels = nb::ndarray<uint8_t, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using Inverses = nb::ndarray<const double, nb::shape<-1, -1, 3, 3>, nb::c_contig, nb::device::cpu>;
using Amounts = nb::ndarray<const float, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;
using Canvases = nb::ndarray<const int32_t, nb::shape<-1, -1, 2>, nb::c_contig, nb::device::cpu>;
using Batch = nb::ndarray<nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using Orientations = Borrowed<uint8_t>;
using Bases = nb::typed<nb::list, Bytes>;

template <typename Value>
Value choice(const char* what, const std::string& name, const std::vector<std::pair<const char*, Value>>& choices) {
    std::string names;
    for (const auto& [known, value] : choices) {
        if (name == known) return value;
        names += std::string(names.empty() ? "'" : ", '") + known + "'";
    }
    throw std::invalid_argument(std::string(what) + " must be one of " + names + ", not '" + name + "'");
}

Filter parse_filter(const std::string& name) {
    return choice<Filter>("filter", name,
                          {{"nearest", Filter::nearest},
                           {"area", Filter::area},
                           {"bilinear", Filter::bilinear},
                           {"bicubic", Filter::bicubic}});
}

JpegDct parse_dct(const std::string& name) {
    return choice<JpegDct>("dct", name, {{"accurate", JpegDct::accurate}, {"fast", JpegDct::fast}});
}

Layout parse_layout(const std::string& name) {
    return choice<Layout>("layout", name, {{"nhwc", Layout::nhwc}, {"nchw", Layout::nchw}});
}

PixelType parse_type(const nb::dlpack::dtype& type) {
    if (type == nb::dtype<uint8_t>()) return PixelType::uint8;
    if (type == nb::dtype<float>()) return PixelType::float32;
    const nb::dlpack::dtype half{static_cast<uint8_t>(nb::dlpack::dtype_code::Float), 16, 1};
    if (type == half) return PixelType::float16;
    throw nb::type_error("out must be of uint8, float16 or float32");
}

// The list keeps its arrays alive, and the caller the list.
std::vector<Buffer> buffers(const std::vector<Bytes>& bases) {
    std::vector<Buffer> buffers;
    buffers.reserve(bases.size());
    for (const Bytes& base : bases) buffers.push_back({base.data(), base.size()});
    return buffers;
}

// nanobind converts what is inside a list, whatever its argument says; arrays here are never converted.
std::vector<Bytes> borrow_all(const Bases& list) {
    std::vector<Bytes> arrays;
    arrays.reserve(list.size());
    for (nb::handle item : list) {
        Bytes array;
        if (!nb::try_cast<Bytes>(item, array, false)) {
            throw nb::type_error("bases must be contiguous one-dimensional arrays of uint8");
        }
        arrays.push_back(std::move(array));
    }
    return arrays;
}

Output make_output(const Batch& out, const std::string& layout, const std::optional<Floats>& scale,
                   const std::optional<Floats>& offset) {
    Output output;
    output.data = static_cast<uint8_t*>(out.data());
    output.type = parse_type(out.dtype());
    output.layout = parse_layout(layout);
    const bool channels_last = output.layout == Layout::nhwc;
    output.images = out.shape(0);
    output.height = out.shape(channels_last ? 1 : 2);
    output.width = out.shape(channels_last ? 2 : 3);
    output.channels = out.shape(channels_last ? 3 : 1);
    if (output.channels < 1 || output.channels > 4) {
        throw std::invalid_argument("out must have 1 to 4 channels, not " + std::to_string(output.channels));
    }
    constexpr size_t longest_side = 65535;
    if (output.height < 1 || output.width < 1 || output.height > longest_side || output.width > longest_side) {
        throw std::invalid_argument("images of " + std::to_string(output.width) + " x " +
                                    std::to_string(output.height) + " pixels cannot be made");
    }
    if (scale) check_length("scale", scale->size(), output.channels);
    if (offset) check_length("offset", offset->size(), output.channels);
    if (output.type != PixelType::uint8) {
        output.normalise(scale ? scale->data() : nullptr, offset ? offset->data() : nullptr);
    } else if (scale || offset) {
        throw std::invalid_argument("uint8 pixels cannot be scaled");
    }
    return output;
}

const uint8_t* flags_of(const char* name, const Flags& flags, size_t n) {
    check_length(name, flags.size(), n);
    if (flags.dtype() != nb::dtype<uint8_t>() && flags.dtype() != nb::dtype<bool>()) {
        throw nb::type_error((std::string(name) + " must be of bool or uint8").c_str());
    }
    return static_cast<const uint8_t*>(flags.data());
}

const int32_t* places_of(const Places& places, const Output& output) {
    check_length("place", places.shape(0), output.images);
    const auto high = static_cast<int64_t>(output.height), wide = static_cast<int64_t>(output.width);
    for (size_t i = 0; i < output.images; ++i) {
        const int32_t* one = places.data() + 4 * i;
        const int64_t top = one[0], left = one[1], height = one[2], width = one[3];
        if (top < 0 || left < 0 || height < 0 || width < 0 || top + height > high || left + width > wide) {
            throw std::invalid_argument("place " + std::to_string(i) + " is not in images of " + std::to_string(wide) +
                                        " x " + std::to_string(high) + " pixels");
        }
    }
    return places.data();
}

DecodeResult decode_unlocked(Engine& engine, const DecodeJob& job) {
    nb::gil_scoped_release unlocked;
    return engine.decode(job);
}

std::tuple<Array<int32_t>, std::vector<std::pair<size_t, std::string>>, size_t> decode(
    Engine& engine, const Bases& bases, const Int32s& base, const Int64s& start, const Int64s& size,
    const std::optional<Shapes>& shape, const std::optional<Boxes>& box, const std::optional<Flags>& flip,
    const Batch& out, const std::string& layout, const std::string& filter, const std::string& dct, bool fast_scale,
    bool strict, const std::optional<Floats>& scale, const std::optional<Floats>& offset,
    const std::optional<Orientations>& orient, const std::optional<std::string>& mode, uint64_t most_pixels,
    const std::optional<Flags>& down, const std::optional<Places>& place, const std::optional<Bytes>& fill) {
    const std::vector<Bytes> arrays = borrow_all(bases);
    DecodeJob job;
    job.bases = buffers(arrays);
    job.output = make_output(out, layout, scale, offset);
    const size_t n = job.output.images;
    check_length("base", base.size(), n);
    check_length("start", start.size(), n);
    check_length("size", size.size(), n);
    if (shape) check_length("shape", shape->shape(0), n);
    if (box) check_length("box", box->shape(0), n);
    job.base = base.data();
    job.start = start.data();
    job.size = size.data();
    job.shape = shape ? shape->data() : nullptr;
    job.box = box ? box->data() : nullptr;
    job.flip = flip ? flags_of("flip", *flip, n) : nullptr;
    job.down = down ? flags_of("down", *down, n) : nullptr;
    if (place) {
        if (fill) check_length("fill", fill->size(), job.output.channels);
        job.place = places_of(*place, job.output);
        job.output.set_fill(fill ? fill->data() : nullptr, best_kernels());
    }
    if (orient) check_length("orient", orient->size(), n);
    job.orient = orient ? orient->data() : nullptr;
    // cmyk stands for all modes that PNG and WebP do not have.
    const PixelMode known = mode ? pixel_mode(*mode) : PixelMode::unknown;
    job.mode = mode && known == PixelMode::unknown ? PixelMode::cmyk : known;
    job.most_pixels = most_pixels;
    job.filter = parse_filter(filter);
    job.dct = parse_dct(dct);
    job.fast_scale = fast_scale;
    job.strict = strict;
    const DecodeResult result = decode_unlocked(engine, job);

    auto status = std::make_unique_for_overwrite<int32_t[]>(n);
    std::copy(result.status.begin(), result.status.end(), status.get());
    return {array_of(status, n), result.errors, result.warnings};
}

void warp_images(Engine& engine, const Pixels& images, const Inverses& inverse, const Canvases& canvases,
                 const MutablePixels& out, const std::string& filter, const Bytes& fill) {
    const size_t n = images.shape(0), channels = images.shape(3);
    check_length("out", out.shape(0), n);
    check_length("inverse", inverse.shape(0), n);
    check_length("canvases", canvases.shape(0), n);
    check_length("fill", fill.size(), channels);
    check_length("the channels of out", out.shape(3), channels);
    check_length("the canvases of an image", canvases.shape(1), inverse.shape(1));
    if (channels < 1 || channels > 4 || inverse.shape(1) < 1) {
        throw std::invalid_argument("images of 1 to 4 channels are warped, by at least one matrix each");
    }
    WarpJob job;
    job.source = images.data();
    job.out = out.data();
    job.images = n;
    job.channels = channels;
    job.source_height = images.shape(1);
    job.source_width = images.shape(2);
    job.height = out.shape(1);
    job.width = out.shape(2);
    job.canvases = inverse.shape(1);
    job.inverse = inverse.data();
    job.sizes = canvases.data();
    job.bilinear = choice<bool>("filter", filter, {{"nearest", false}, {"bilinear", true}});
    job.fill = fill.data();
    for (size_t i = 0; i < n; ++i) {
        // The others are only compared with; of this one pixels are read.
        const int32_t* size = job.sizes + 2 * job.canvases * i;
        if (size[0] < 0 || size[1] < 0 || static_cast<size_t>(size[0]) > job.source_height ||
            static_cast<size_t>(size[1]) > job.source_width) {
            throw std::invalid_argument("the first canvas of an image is no larger than the image");
        }
    }
    nb::gil_scoped_release unlocked;
    engine.warp(job);
}

void jitter_images(Engine& engine, const MutablePixels& images, const Amounts& amounts) {
    check_length("amounts", amounts.shape(0), images.shape(0));
    if (images.shape(3) != 3) throw std::invalid_argument("colours are those of three channels");
    std::vector<Jitter> each(images.shape(0));
    for (size_t i = 0; i < each.size(); ++i) {
        const float* one = amounts.data() + 4 * i;
        each[i] = {one[0], one[1], one[2], one[3]};
        // Beyond half a circle it would have to be wrapped more than once.
        if (each[i].hue < -0.5f || each[i].hue > 0.5f) throw std::invalid_argument("a hue turns by -0.5 to 0.5");
    }
    nb::gil_scoped_release unlocked;
    engine.jitter(images.data(), each.size(), images.shape(1) * images.shape(2), each.data());
}

std::tuple<Table<int64_t>, size_t> code(Engine& engine, const Bases& bases, const Int32s& base, const Int64s& start,
                                        const Int64s& size, const Parts& part, const MutableBytes& out, bool scans) {
    const std::vector<Bytes> arrays = borrow_all(bases);
    const size_t n = base.size();
    check_length("start", start.size(), n);
    check_length("size", size.size(), n);
    check_length("part", part.shape(0), n);
    CodeJob job{buffers(arrays), base.data(), start.data(), size.data(), part.data(), n,
                out.data(),      out.size(),  nullptr,      scans};
    auto table = std::make_unique<int64_t[]>(n * job.columns());
    job.table = table.get();
    size_t used = 0;
    {
        nb::gil_scoped_release unlocked;
        used = engine.code(job);
    }
    return {table_of(table, n, job.columns()), used};
}

void gather(Engine& engine, const Bases& bases, const Int32s& base, const Int64s& start, const Int64s& line,
            const Int64s& rows, const Int64s& width, const MutableBytes& out, const Int64s& places) {
    const std::vector<Bytes> arrays = borrow_all(bases);
    const size_t n = base.size();
    check_length("start", start.size(), n);
    check_length("line", line.size(), n);
    check_length("rows", rows.size(), n);
    check_length("width", width.size(), n);
    check_length("places", places.size(), n);
    const std::vector<Buffer> from = buffers(arrays);
    const Windows windows{base.data(), start.data(), line.data(), rows.data(), width.data(), places.data(), n};
    nb::gil_scoped_release unlocked;
    const int64_t bad = engine.gather(from, windows, out.data(), out.size());
    if (bad >= 0) throw_bad_run(bad);
}

std::tuple<Table<int64_t>, int64_t> plan(const Int64s& start, const Shapes& shape, const Boxes& box, double support,
                                         double height, double width) {
    const size_t n = start.size();
    check_length("shape", shape.shape(0), n);
    check_length("box", box.shape(0), n);
    constexpr auto kinds = static_cast<size_t>(WindowRow::count);
    auto plan = std::make_unique_for_overwrite<int64_t[]>(kinds * n);
    const int64_t room = plan_windows({start.data(), shape.data(), box.data(), support, height, width, n}, plan.get());
    return {table_of(plan, kinds, n), room};
}

auto prefetch_images(const Bases& bases, const Int32s& base, const Int64s& start, const Int64s& size, bool headers) {
    const std::vector<Bytes> arrays = borrow_all(bases);
    const size_t n = size.size();
    check_length("base", base.size(), n);
    check_length("start", start.size(), n);
    const std::vector<Buffer> from = buffers(arrays);
    auto table = std::make_unique_for_overwrite<int32_t[]>(2 * n);
    int32_t* sizes = table.get();
    {
        nb::gil_scoped_release unlocked;
        const Cells cells{from, base.data(), start.data(), size.data(), n};
        prefetch(cells);
        if (headers) {
            read_sizes(cells, sizes);
        } else {
            std::fill_n(sizes, 2 * n, 0);
        }
    }
    return nb::ndarray<nb::numpy, int32_t, nb::shape<-1, 2>>(sizes, {n, 2}, owner_of(table));
}

void make_engine(Engine* place, int64_t threads, const std::optional<std::vector<int>>& cpus, int nice,
                 const std::optional<std::string>& kernels, bool baseline) {
    const auto count = threads < 0 ? 0 : static_cast<size_t>(threads);
    std::vector<std::pair<const char*, const Kernels*>> sets;
    for (const Kernels* one : all_kernels()) sets.emplace_back(one->name, one);
    const Kernels* chosen = kernels ? choice("_kernels", *kernels, sets) : &best_kernels();
    new (place) Engine(count, cpus.value_or(std::vector<int>()), nice, *chosen, baseline);
}

}  // namespace

void bind_engine(nb::module_& module) {
    module.def("prefetch_images", prefetch_images, nb::arg("bases"), array_arg("base"), array_arg("start"),
               array_arg("size"), nb::arg("headers"),
               R"(Have the kernel read cells of mapped files that are not in memory, all together.

With headers, give (height, width) of every image as its header says; zeros where it says none, or
without headers.)");
    module.def("plan_windows", plan, array_arg("start"), array_arg("shape"), array_arg("box"), nb::arg("support"),
               nb::arg("height"), nb::arg("width"),
               R"(Which part of raw images their boxes (x0, y0, x1, y1) need, and a place for it.

For a filter that sees support pixels around a pixel where the box becomes height x width. shape:
height, width, channels. Gives an array with a row for each of top, left, rows, columns, and of what
Engine.gather takes: start, line, width in bytes, place; and the bytes that all take together.)");
    nb::class_<Engine>(module, "Engine",
                       R"(Decodes batches of images on threads of its own, which keep decoders and scratch memory.

Any number of threads may call it at once; their calls queue. It does not survive a fork: in the
child every call is a RuntimeError, as after close().)")
        .def("__init__", make_engine, nb::arg("threads"), nb::arg("cpus") = nb::none(), nb::kw_only(),
             nb::arg("nice") = 0, nb::arg("_kernels") = nb::none(), nb::arg("_baseline") = true,
             R"(With cpus, thread i stays on cpus[i % len(cpus)]. nice: as of Unix, for these threads.

For tests: _kernels, a name of kernel_sets(); _baseline=False, libjpeg alone decodes JPEGs.)")
        .def("decode", decode, nb::arg("bases"), array_arg("base"), array_arg("start"), array_arg("size"),
             array_arg("shape").none(), array_arg("box").none(), array_arg("flip").none(), array_arg("out"),
             nb::kw_only(), nb::arg("layout"), nb::arg("filter"), nb::arg("dct") = "accurate",
             nb::arg("fast_scale") = false, nb::arg("strict") = true, array_arg("scale") = nb::none(),
             array_arg("offset") = nb::none(), array_arg("orient") = nb::none(), nb::arg("mode") = nb::none(),
             nb::arg("most_pixels") = uint64_t{1} << 28, array_arg("down") = nb::none(),
             array_arg("place") = nb::none(), array_arg("fill") = nb::none(),
             R"(Crop, resize and flip images into out; gives (status, errors, warnings).

Image i is size[i] bytes from start[i] on of bases[base[i]]: raw pixels where shape[i] (height,
width, channels) is not zeros, else an encoded image. box[i] is x0, y0, x1, y1, zeros for the whole
image; flip mirrors left and right. out is n x H x W x C ("nhwc") or n x C x H x W ("nchw") of
uint8, float16 or float32, the last two as value * scale + offset by channel; C is 1 to 4, for JPEG 1
or 3.

filter:      "area" (OpenCV's INTER_AREA), "bilinear" or "bicubic" (Pillow's), "nearest"
dct:         "accurate", or "fast" for libjpeg's quicker and coarser one
fast_scale:  let libjpeg scale large images by 1/2, 1/4 or 1/8; pixels differ a little
strict:      fail images that libjpeg warns about, rather than keep what it made of them
orient:      EXIF orientation of encoded images, 1 to 8: applied first, the box is in the result
mode:        of PNG and WebP, as png_decode takes it; None: L, LA, RGB or RGBA by the channels of out
most_pixels: an encoded image that has more fails
down:        which images are turned upside down
place:       top, left, height, width of what becomes of each box in out; the rest is filled
fill:        with this colour, a byte for each channel; it is scaled like pixels. None: black

status:      0 decoded; 1 failed: its pixels are zeros, and errors has (index, message); 2 not
             native: no JPEG, PNG or WebP, or one that needs another decoder or would lose by the
             change to these channels: its pixels are as they were
warnings:    how many libjpeg gave)")
        .def("code", code, nb::arg("bases"), array_arg("base"), array_arg("start"), array_arg("size"),
             array_arg("part"), array_arg("out"), nb::kw_only(), nb::arg("scans") = false,
             R"(Read the coefficients of parts of JPEGs, for a device that makes pixels of them.

Gives (table, used). Image i is as in decode(); part[i] is left, top, right, bottom, whole pixels.
What is read goes to out, of which used bytes are taken. table has 11 columns: the place in out (-1
where the image is not of the common kind, is damaged, or there is no room), the number of blocks,
the number of entries; then first column, columns, first row and rows of the brightness, and the same
of the colours, in blocks of 8 x 8.

At its place, an image has 3 x 64 steps (uint8, in rows), its blocks (uint32 first entry, uint16
entries, int16 first coefficient; component after component, each in rows), and its entries (int16:
value times 64 plus place in the block's rows; the place 0 adds its value times 512 to the one
before).

scans: leave the reading to the device, too. Then an image has its steps, four Huffman codes of 288
bytes (how many there are of each length from 0 to 16, then what they stand for; of first
coefficients and of others, of brightness and of colours), and its bits in uint32 words, the first
bit highest. The third column is the number of bits, and four columns follow: MCUs in a row, rows of
them, 1 where all bits must be read, and a number that is the same where the codes are.)")
        .def("wait_turn", &Engine::wait_turn, nb::call_guard<nb::gil_scoped_release>(),
             "Wait until the work of all calls so far is handed out, so that the next call begins at once.")
        .def("warp", warp_images, array_arg("images"), array_arg("inverse"), array_arg("canvases"), array_arg("out"),
             nb::arg("filter"), array_arg("fill"),
             R"(Rotate, shear or see images (n x H x W x C of uint8) in perspective, into out.

inverse (n x k x 3 x 3) takes positions (x, y, 1) in out to those in each of k canvases that an image
goes through; the first is the image. canvases (n x k x 2) has their heights and widths: what is
outside any of them is filled. filter: "bilinear" or "nearest", as Pillow's.)")
        .def("jitter", jitter_images, array_arg("images"), array_arg("amounts"),
             R"(Change the colours of images (n x H x W x 3 of uint8), in place.

amounts (n x 4): brightness, contrast and saturation to multiply by, and the part of the circle that
the hue is turned by, one after the other; NaN leaves one as it is.)")
        .def("gather", gather, nb::arg("bases"), array_arg("base"), array_arg("start"), array_arg("line"),
             array_arg("rows"), array_arg("width"), array_arg("out"), array_arg("places"),
             R"(Copy windows of the bases to their places in out, in parallel; they must not overlap there.

Window i: rows[i] times width[i] bytes, line[i] bytes apart, from start[i] on. IndexError, and
nothing copied, if any is out of bounds.)")
        .def_prop_ro("threads", &Engine::threads, "Number of threads.")
        .def_prop_ro("baseline_jpegs", &Engine::baseline_jpegs,
                     "Number of JPEGs decoded without libjpeg so far: the common kind, undamaged.")
        .def_prop_ro(
            "seconds",
            [](const Engine& engine) {
                const Seconds seconds = engine.seconds();
                return std::tuple(seconds.decode, seconds.resample);
            },
            "Seconds that threads spent decoding and resampling, added up; raw pixels need no decoding.")
        .def("close", &Engine::close, nb::call_guard<nb::gil_scoped_release>(),
             "End the threads, after the calls under way.");
}

}  // namespace batchplant
