#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../io/bytes.hpp"
#include "../images/probe.hpp"

// The types and docstrings of everything bound here become src/batchplant/_native.pyi (make stubs).

namespace batchplant {

namespace nb = nanobind;

// Borrowed without a copy, for as long as the Python argument lives: the call's length. Arguments of these types are
// declared with array_arg.
template <typename T>
using Borrowed = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = Borrowed<uint8_t>;
using Int32s = Borrowed<int32_t>;
using Int64s = Borrowed<int64_t>;
using MutableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// A height and a width for each.
using Sizes = nb::ndarray<const int64_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
using Pixels = nb::ndarray<const uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

// New memory, which the array owns.
template <typename T>
using Array = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
template <typename T>
using Table = nb::ndarray<nb::numpy, T, nb::ndim<2>>;
using PixelsOut = nb::ndarray<nb::numpy, uint8_t, nb::ndim<3>>;

// An argument that is an array. Without noconvert() nanobind would quietly copy and cast one of another type.
inline auto array_arg(const char* name) { return nb::arg(name).noconvert(); }

// The signature of a function whose first argument may be anything with a buffer of bytes; nanobind names arrays only.
#define BUFFER_SIG(name, rest) nb::sig("def " name "(data: typing_extensions.Buffer | ndarray[dtype=uint8], " rest)

template <typename T>
nb::capsule owner_of(std::unique_ptr<T[]>& memory) {
    nb::capsule owner(memory.get(), [](void* p) noexcept { delete[] static_cast<T*>(p); });
    memory.release();
    return owner;
}

template <typename T>
Array<T> array_of(std::unique_ptr<T[]>& memory, size_t size) {
    T* const values = memory.get();
    return Array<T>(values, {size}, owner_of(memory));
}

template <typename T>
Table<T> table_of(std::unique_ptr<T[]>& memory, size_t rows, size_t columns) {
    T* const values = memory.get();
    return Table<T>(values, {rows, columns}, owner_of(memory));
}

template <typename T>
Array<T> copy_of(const std::vector<T>& values) {
    auto memory = std::make_unique_for_overwrite<T[]>(values.size());
    std::copy(values.begin(), values.end(), memory.get());
    return array_of(memory, values.size());
}

// The vector itself becomes the array's memory.
template <typename T>
Array<T> array_of(std::vector<T>&& values) {
    auto* const kept = new std::vector<T>(std::move(values));
    nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    if (kept->empty()) kept->reserve(1);  // an array may not lie nowhere
    return Array<T>(kept->data(), {kept->size()}, owner);
}

// A row that could not be parsed, the offset in its data, and the reason.
using RowFailure = std::optional<std::tuple<int64_t, int64_t, std::string>>;

template <typename Failure>
RowFailure failure_of(const Failure& failure) {
    if (failure.row < 0) return std::nullopt;
    return std::tuple(failure.row, failure.offset, std::string(failure.reason));
}

using ByteStrings = nb::typed<nb::list, nb::bytes>;

inline std::string string_of(nb::handle bytes) {
    nb::bytes found;
    if (!nb::try_cast<nb::bytes>(bytes, found, false)) throw nb::type_error("bytes are needed");
    return {found.c_str(), found.size()};
}

inline std::vector<std::string> strings_of(const ByteStrings& list) {
    std::vector<std::string> strings;
    for (nb::handle one : list) strings.push_back(string_of(one));
    return strings;
}

inline void check_length(const char* name, size_t have, size_t want) {
    if (have == want) return;
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(have) + " entries, not " +
                                std::to_string(want));
}

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

// Throws unless every run lies in a buffer of `total` bytes.
inline void check_runs(const Int64s& starts, const Int64s& sizes, size_t total) {
    check_same_length(starts, "starts", sizes, "sizes");
    const int64_t bad = first_bad_run(starts.data(), sizes.data(), starts.size(), total);
    if (bad >= 0) throw_bad_run(bad);
}

// "L", "LA", "RGB", "RGBA" or "P"; unknown for all else.
PixelMode pixel_mode(const std::string& name);

void bind_crc(nb::module_& module);
void bind_bytes(nb::module_& module);
void bind_folder(nb::module_& module);
void bind_probe(nb::module_& module);
void bind_jpeg(nb::module_& module);
void bind_image(nb::module_& module);
void bind_changes(nb::module_& module);
void bind_png(nb::module_& module);
void bind_engine(nb::module_& module);
void bind_lease(nb::module_& module);
void bind_permute(nb::module_& module);
void bind_spectrogram(nb::module_& module);
void bind_orders(nb::module_& module);
void bind_packing(nb::module_& module);
void bind_msgpack(nb::module_& module);
void bind_datum(nb::module_& module);
void bind_recordio(nb::module_& module);
void bind_riegeli(nb::module_& module);
void bind_fetch(nb::module_& module);
void bind_gather(nb::module_& module);
void bind_tfrecord(nb::module_& module);
void bind_example(nb::module_& module);
void bind_tar(nb::module_& module);
void bind_text(nb::module_& module);
void bind_rle(nb::module_& module);
void bind_sparse(nb::module_& module);
void bind_parquet(nb::module_& module);
void bind_chunks(nb::module_& module);
void bind_features(nb::module_& module);

}  // namespace batchplant
