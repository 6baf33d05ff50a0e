#include "../io/chunks.hpp"

#include <nanobind/stl/pair.h>

#include "../io/memory.hpp"
#include "../io/pool.hpp"
#include "bind.hpp"

namespace batchplant {
namespace {

// A view of an object's memory; the GIL is held when it is made and when it goes.
class View {
public:
    View(nb::handle object, int flags) {
        if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw nb::python_error();
    }
    View(View&& other) noexcept : view_(other.view_) { other.view_.obj = nullptr; }
    View& operator=(View&&) = delete;
    ~View() { PyBuffer_Release(&view_); }

    const Py_buffer& get() const { return view_; }
    const uint8_t* data() const { return static_cast<const uint8_t*>(view_.buf); }
    size_t size() const { return static_cast<size_t>(view_.len); }
    StridedArray strided() const {
        return {static_cast<uint8_t*>(view_.buf),
                {view_.shape, view_.shape + view_.ndim},
                {view_.strides, view_.strides + view_.ndim}};
    }

private:
    Py_buffer view_{};
};

ChunkStep step_of(const std::string& name) {
    const std::pair<const char*, ChunkStep> steps[] = {
        {"blosc", ChunkStep::blosc},  {"crc32c", ChunkStep::crc32c},
        {"gzip", ChunkStep::deflate}, {"fletcher32", ChunkStep::fletcher32},
        {"lz4", ChunkStep::lz4},      {"shuffle", ChunkStep::shuffle},
        {"zstd", ChunkStep::zstd},
    };
    for (const auto& [known, step] : steps) {
        if (name == known) return step;
    }
    throw std::invalid_argument("there is no step " + name);
}

ChunkCoding coding_of(const std::vector<std::pair<std::string, size_t>>& steps, size_t bytes, const nb::bytes& prefix,
                      size_t swap) {
    ChunkCoding coding;
    const auto* begin = reinterpret_cast<const uint8_t*>(prefix.c_str());
    coding.prefix.assign(begin, begin + prefix.size());
    for (const auto& [name, argument] : steps) coding.steps.emplace_back(step_of(name), argument);
    coding.bytes = bytes;
    coding.swap = swap;
    return coding;
}

using IndexList = nb::typed<nb::list, nb::typed<nb::tuple, int64_t, nb::ellipsis>>;
using Objects = nb::typed<nb::list, nb::any>;
using Boxes = nb::ndarray<const int64_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

ChunkBoxes boxes_of(const Boxes& boxes, const std::vector<int64_t>& steps, const std::vector<int64_t>& chunks) {
    if (boxes.shape(1) != 3 || boxes.shape(2) != chunks.size()) throw std::invalid_argument("boxes of other axes");
    const nb::gil_scoped_release unlocked;
    return {boxes.data(), boxes.shape(0), steps, chunks};
}

class ChunkThreads {
public:
    explicit ChunkThreads(size_t threads) : pool_(threads) {}

    nb::typed<nb::list, std::optional<Array<uint8_t>>> decode(const ChunkCoding& coding, const Objects& sources,
                                                              const Int64s& starts, const Int64s& sizes) {
        const size_t n = sources.size();
        check_length("starts", starts.size(), n);
        check_length("sizes", sizes.size(), n);
        std::vector<std::string> paths(n);
        std::vector<std::optional<View>> views(n);
        for (size_t i = 0; i < n; ++i) {
            if (nb::isinstance<nb::bytes>(sources[i])) {
                paths[i] = string_of(sources[i]);
            } else {
                views[i].emplace(sources[i], PyBUF_SIMPLE);
            }
        }
        std::vector<std::unique_ptr<uint8_t[]>> values(n);
        {
            const nb::gil_scoped_release unlocked;
            auto work = [&](size_t i, size_t) noexcept {
                try {
                    values[i] = fresh_memory(coding.bytes);
                    const bool good = views[i]
                                          ? decode_chunk(coding, views[i]->data(), views[i]->size(), values[i].get())
                                          : decode_chunk_file(coding, paths[i].c_str(), starts.data()[i],
                                                              sizes.data()[i], values[i].get());
                    if (!good) values[i].reset();
                } catch (const std::exception&) {
                    values[i].reset();
                }
            };
            spread(n, n * coding.bytes, work);
        }
        nb::typed<nb::list, std::optional<Array<uint8_t>>> decoded;
        for (auto& memory : values) {
            decoded.append(memory ? nb::cast(array_of(memory, coding.bytes)) : nb::none());
        }
        return decoded;
    }

    void copy(const ChunkBoxes& boxes, size_t first, const Objects& chunks, nb::handle out,
              const std::optional<Int64s>& rows) {
        const size_t n = chunks.size();
        if (first > boxes.chunks() || n > boxes.chunks() - first) throw std::out_of_range("there are no such chunks");
        if (rows) check_length("rows", rows->size(), boxes.count);
        const View target(out, PyBUF_STRIDED);
        std::vector<View> views;
        views.reserve(n);
        for (nb::handle chunk : chunks) {
            views.emplace_back(chunk, PyBUF_STRIDED_RO);
            if (views.back().get().itemsize != target.get().itemsize) throw std::invalid_argument("other values");
        }
        const auto itemsize = static_cast<size_t>(target.get().itemsize);
        std::atomic<bool> good = true;
        {
            const nb::gil_scoped_release unlocked;
            const StridedArray to = target.strided();
            auto work = [&](size_t i, size_t) noexcept {
                try {
                    if (!copy_chunk(boxes, first + i, views[i].strided(), to, rows ? rows->data() : nullptr, itemsize))
                        good = false;
                } catch (const std::exception&) {
                    good = false;
                }
            };
            spread(n, target.size(), work);
        }
        if (!good) throw std::out_of_range("a box leaves its chunk or the output");
    }

private:
    // Work on fewer bytes ends before another thread would begin.
    template <typename Work>
    void spread(size_t n, size_t bytes, Work&& work) {
        constexpr size_t least = size_t{256} << 10;
        if (n > 1 && bytes > least) return pool_.parallel_for(n, work, true);
        for (size_t i = 0; i < n; ++i) work(i, 0);
    }

    Pool pool_;
};

}  // namespace

void bind_chunks(nb::module_& module) {
    nb::class_<ChunkCoding>(module, "ChunkCoding", "Steps from the stored bytes of an array's chunks to their values.")
        .def(
            "__init__",
            [](ChunkCoding* self, const std::vector<std::pair<std::string, size_t>>& steps, size_t bytes,
               const nb::bytes& prefix, size_t swap) { new (self) ChunkCoding(coding_of(steps, bytes, prefix, swap)); },
            nb::arg("steps"), nb::arg("bytes"), nb::arg("prefix") = nb::bytes(""), nb::arg("swap") = 1,
            R"(Steps in the order in which they are undone, each with a number.

shuffle: the size of values; blosc, lz4 and zstd: the address of blosc_decompress_ctx,
LZ4_decompress_safe or ZSTD_decompress; others: none. bytes: of a chunk's values. prefix: stands
before every whole chunk. swap: the size of values whose bytes are stored the other way round.)");
    nb::class_<ChunkBoxes>(module, "ChunkBoxes", "Boxes of an array by the chunks that they touch.")
        .def(
            "__init__",
            [](ChunkBoxes* self, const Boxes& boxes, const std::vector<int64_t>& steps,
               const std::vector<int64_t>& chunks) { new (self) ChunkBoxes(boxes_of(boxes, steps, chunks)); },
            array_arg("boxes"), nb::arg("steps"), nb::arg("chunks"),
            "For each box its starts, counts and places in its output; for each axis a step and chunk size.")
        .def_prop_ro(
            "indices",
            [](const ChunkBoxes& self) {
                std::vector<nb::tuple> indices;
                for (size_t i = 0; i < self.chunks(); ++i) {
                    nb::list index;
                    for (size_t axis = 0; axis < self.axes; ++axis) index.append(self.indices[i * self.axes + axis]);
                    indices.emplace_back(nb::tuple(index));
                }
                return nb::cast<IndexList>(nb::cast(indices));
            },
            "The chunks, ascending, each by its number along each axis.")
        .def(
            "place",
            [](const ChunkBoxes& self, size_t chunk) {
                if (chunk >= self.chunks() || self.axes == 0) throw std::out_of_range("there is no such chunk");
                return self.parts[self.firsts[chunk] * self.axes].target;
            },
            nb::arg("chunk"), "Place along the first axis of the output of what the first box takes of a chunk.")
        .def(
            "first",
            [](const ChunkBoxes& self, size_t chunk) {
                if (chunk >= self.chunks()) throw std::out_of_range("there is no such chunk");
                return self.box[self.firsts[chunk]];
            },
            nb::arg("chunk"), "The first box that touches a chunk.");
    nb::class_<ChunkThreads>(module, "ChunkThreads", "Threads that decode chunks and copy boxes out of them.")
        .def(nb::init<size_t>(), nb::arg("threads"))
        .def("decode", &ChunkThreads::decode, nb::arg("coding"), nb::arg("sources"), array_arg("starts"),
             array_arg("sizes"),
             R"(Decode chunks: the values of each, or None for one that is missing, damaged or not whole.

A source is a buffer, or the path of a file as bytes, of which a run is read; -1: up to the end.)")
        .def("copy", &ChunkThreads::copy, nb::arg("boxes"), nb::arg("first"), nb::arg("chunks"), nb::arg("out"),
             array_arg("rows").none() = nb::none(),
             "Copy what boxes take of some chunks, from the first on, into an output or rows of it.");
}

}  // namespace batchplant
