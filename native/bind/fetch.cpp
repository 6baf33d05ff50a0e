#include "../io/fetch.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

#include <limits>

#include "../io/bytes.hpp"
#include "bind.hpp"

namespace batchplant {
namespace {

using MappedBytes = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>;

struct Mapping {
    void* data;
    size_t size;
};

[[noreturn]] void throw_errno() {
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
}

// Unlike Python's mmap it keeps no descriptor, so that a dataset may have more files than a process may open.
MappedBytes map_file(int fd) {
    struct stat facts;
    if (fstat(fd, &facts) != 0) throw_errno();
    const auto size = static_cast<size_t>(facts.st_size);
    if (size == 0) return MappedBytes(nullptr, {0}, nb::none());
    void* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) throw_errno();
    auto mapping = std::make_unique<Mapping>(Mapping{data, size});
    nb::capsule owner(mapping.get(), [](void* p) noexcept {
        const std::unique_ptr<Mapping> held(static_cast<Mapping*>(p));
        munmap(held->data, held->size);
    });
    mapping.release();
    return MappedBytes(static_cast<const uint8_t*>(data), {size}, owner);
}

void check_runs(const Int64s& starts, const Int64s& sizes, size_t total) {
    check_same_length(starts, "starts", sizes, "sizes");
    const int64_t bad = first_bad_run(starts.data(), sizes.data(), starts.size(), total);
    if (bad >= 0) throw_bad_run(bad);
}

nb::object fetch_runs_of(int fd, const Int64s& starts, const Int64s& sizes, const MutableBytes& out,
                         const Int64s& out_starts, size_t threads, bool ring) {
    check_runs(starts, sizes, static_cast<size_t>(std::numeric_limits<int64_t>::max()));
    check_runs(out_starts, sizes, out.size());
    FetchFailure failure;
    {
        nb::gil_scoped_release unlocked;
        failure = fetch_runs(fd, starts.data(), sizes.data(), out.data(), out_starts.data(), starts.size(), threads,
                             ring);
    }
    if (failure.run < 0) return nb::none();
    return nb::make_tuple(failure.run, failure.error);
}

double resident_of(const Bytes& mapping, const Int64s& starts, const Int64s& sizes) {
    check_runs(starts, sizes, mapping.size());
    nb::gil_scoped_release unlocked;
    return resident(mapping.data(), starts.data(), sizes.data(), starts.size());
}

double cached_of(int fd, const Int64s& starts, const Int64s& sizes) {
    check_runs(starts, sizes, static_cast<size_t>(std::numeric_limits<int64_t>::max()));
    nb::gil_scoped_release unlocked;
    return cached(fd, starts.data(), sizes.data(), starts.size());
}

void will_need_of(const Bytes& mapping, const Int64s& starts, const Int64s& sizes) {
    check_runs(starts, sizes, mapping.size());
    nb::gil_scoped_release unlocked;
    will_need(mapping.data(), starts.data(), sizes.data(), starts.size());
}

}  // namespace

void bind_fetch(nb::module_& module) {
    module.def("map_file", map_file, nb::arg("fd"), "The bytes of an open file, mapped; they outlive the descriptor.");
    module.def("fetch_runs", fetch_runs_of, nb::arg("fd"), nb::arg("starts").noconvert(), nb::arg("sizes").noconvert(),
               nb::arg("out").noconvert(), nb::arg("out_starts").noconvert(), nb::arg("threads") = 16,
               nb::arg("_ring") = true, "Read runs of a file to their places in out, all asked for together.");
    module.def("resident", resident_of, nb::arg("mapping").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), "Which part of a few pages of these runs is in memory.");
    module.def("cached", cached_of, nb::arg("fd"), nb::arg("starts").noconvert(), nb::arg("sizes").noconvert(),
               "The same of an open file; -1 where its file system does not tell.");
    module.def("will_need", will_need_of, nb::arg("mapping").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), "Have the kernel begin to read these runs.");
}

}  // namespace batchplant
