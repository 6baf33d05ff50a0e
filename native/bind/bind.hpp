#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "../pictures/probe.hpp"

namespace batchplant {

namespace nb = nanobind;

// Borrowed without a copy, for as long as the Python argument lives: the call's length. Arguments of these
// types carry .noconvert(), else nanobind would quietly copy and cast an array of another type.
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Int64s = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// A height and a width for each.
using Sizes = nb::ndarray<const int64_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
using Pixels = nb::ndarray<const uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

using PixelsOut = nb::ndarray<nb::numpy, uint8_t, nb::ndim<3>>;

inline void check_same_length(const Int64s& a, const char* a_name, const Int64s& b, const char* b_name) {
    if (a.size() == b.size()) return;
    throw std::invalid_argument(std::string(a_name) + " has " + std::to_string(a.size()) + " values but " + b_name +
                                " has " + std::to_string(b.size()));
}

inline void check_sizes(const Int64s& starts, const Sizes& shapes) {
    if (starts.size() == shapes.shape(0)) return;
    throw std::invalid_argument("starts has " + std::to_string(starts.size()) + " values but shapes has " +
                                std::to_string(shapes.shape(0)));
}

[[noreturn]] inline void throw_bad_run(int64_t index) {
    throw std::out_of_range("run " + std::to_string(index) + " is out of bounds");
}

// "L", "LA", "RGB", "RGBA" or "P"; unknown for all else.
PixelMode pixel_mode(const std::string& name);

template <typename T>
nb::capsule owner_of(std::unique_ptr<T[]>& memory) {
    nb::capsule owner(memory.get(), [](void* p) noexcept { delete[] static_cast<T*>(p); });
    memory.release();
    return owner;
}

void bind_crc(nb::module_& module);
void bind_bytes(nb::module_& module);
void bind_probe(nb::module_& module);
void bind_jpeg(nb::module_& module);
void bind_image(nb::module_& module);
void bind_png(nb::module_& module);
void bind_engine(nb::module_& module);
void bind_lease(nb::module_& module);
void bind_permute(nb::module_& module);
void bind_msgpack(nb::module_& module);
void bind_lmdb(nb::module_& module);
void bind_recordio(nb::module_& module);
void bind_fetch(nb::module_& module);
void bind_gather(nb::module_& module);
void bind_tfrecord(nb::module_& module);
void bind_example(nb::module_& module);
void bind_tar(nb::module_& module);
void bind_text(nb::module_& module);
void bind_features(nb::module_& module);
void bind_nvjpeg(nb::module_& module);

}  // namespace batchplant
