#include "../io/fetch.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

#include <limits>

#include "../io/prefixed.hpp"
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

std::optional<std::tuple<int64_t, int>> fetch_runs_of(int fd, const Int64s& starts, const Int64s& sizes,
                                                      const MutableBytes& out, const Int64s& out_starts, size_t threads,
                                                      bool ring) {
    check_runs(starts, sizes, static_cast<size_t>(std::numeric_limits<int64_t>::max()));
    check_runs(out_starts, sizes, out.size());
    FetchFailure failure;
    {
        nb::gil_scoped_release unlocked;
        failure =
            fetch_runs(fd, starts.data(), sizes.data(), out.data(), out_starts.data(), starts.size(), threads, ring);
    }
    if (failure.run < 0) return std::nullopt;
    return std::tuple(failure.run, failure.error);
}

std::optional<std::tuple<int64_t, int>> fetch_spans_of(const Int32s& fds, const Int32s& file, const Int64s& starts,
                                                       const Int64s& sizes, const Int64s& least,
                                                       const MutableBytes& out, const Int64s& out_starts,
                                                       size_t threads, bool ring) {
    check_runs(starts, sizes, static_cast<size_t>(std::numeric_limits<int64_t>::max()));
    check_runs(out_starts, sizes, out.size());
    check_same_length(starts, "starts", least, "least");
    check_length("file", file.size(), starts.size());
    for (size_t i = 0; i < file.size(); ++i) {
        const int32_t one = file.data()[i];
        if (one < 0 || static_cast<size_t>(one) >= fds.size() || least.data()[i] > sizes.data()[i]) {
            throw_bad_run(static_cast<int64_t>(i));
        }
    }
    FetchFailure failure;
    {
        nb::gil_scoped_release unlocked;
        failure = fetch_spans(fds.data(), file.data(), starts.data(), sizes.data(), least.data(), out.data(),
                              out_starts.data(), starts.size(), threads, ring);
    }
    if (failure.run < 0) return std::nullopt;
    return std::tuple(failure.run, failure.error);
}

double resident_fraction_of(const Bytes& mapping, const Int64s& starts, const Int64s& sizes, bool each) {
    check_runs(starts, sizes, mapping.size());
    nb::gil_scoped_release unlocked;
    return resident_fraction(mapping.data(), starts.data(), sizes.data(), starts.size(), each);
}

double cached_fraction_of(int fd, const Int64s& starts, const Int64s& sizes) {
    check_runs(starts, sizes, static_cast<size_t>(std::numeric_limits<int64_t>::max()));
    nb::gil_scoped_release unlocked;
    return cached_fraction(fd, starts.data(), sizes.data(), starts.size());
}

// ``find(places, sizes_of)``: the sizes of cells in runs that were checked, those of run i to sizes_of + places[i].
template <class Find>
std::tuple<Array<int64_t>, Array<uint8_t>> sizes_by(const Int64s& sizes, const Int64s& counts, Find find) {
    check_same_length(counts, "counts", sizes, "sizes");
    std::vector<int64_t> places(counts.size() + 1);
    for (size_t i = 0; i < counts.size(); ++i) {
        const int64_t count = counts.data()[i];
        // Each takes four bytes at least.
        if (count < 0 || count > sizes.data()[i] / 4) throw_bad_run(static_cast<int64_t>(i));
        places[i + 1] = places[i] + count;
    }
    const auto total = static_cast<size_t>(places.back());
    auto found = std::make_unique<int64_t[]>(total);
    std::vector<uint8_t> good;
    {
        nb::gil_scoped_release unlocked;
        good = find(places.data(), found.get());
    }
    return {array_of(found, total), array_of(std::move(good))};
}

std::tuple<Array<int64_t>, Array<uint8_t>> prefixed_sizes_of(int fd, const Int64s& starts, const Int64s& sizes,
                                                             const Int64s& counts, bool past, size_t threads) {
    check_runs(starts, sizes, static_cast<size_t>(std::numeric_limits<int64_t>::max()));
    return sizes_by(sizes, counts, [&](const int64_t* places, int64_t* found) {
        return prefixed_sizes(fd, starts.data(), sizes.data(), counts.data(), places, starts.size(), found, past,
                              threads);
    });
}

std::tuple<Array<int64_t>, Array<uint8_t>> prefixed_sizes_in(const Bytes& memory, const Int64s& starts,
                                                             const Int64s& sizes, const Int64s& counts) {
    check_runs(starts, sizes, memory.size());
    return sizes_by(sizes, counts, [&](const int64_t* places, int64_t* found) {
        return prefixed_sizes(memory.data(), starts.data(), sizes.data(), counts.data(), places, starts.size(), found);
    });
}

void will_need_of(const Bytes& mapping, const Int64s& starts, const Int64s& sizes) {
    check_runs(starts, sizes, mapping.size());
    nb::gil_scoped_release unlocked;
    will_need(mapping.data(), starts.data(), sizes.data(), starts.size());
}

}  // namespace

void bind_fetch(nb::module_& module) {
    module.def("map_file", map_file, nb::arg("fd"),
               "Map the bytes of an open file. They outlive the descriptor, until nothing refers to the array.");
    module.def("fetch_runs", fetch_runs_of, nb::arg("fd"), array_arg("starts"), array_arg("sizes"), array_arg("out"),
               array_arg("out_starts"), nb::arg("threads") = 16, nb::arg("_ring") = true,
               R"(Read runs of a file to their places in out, all requested together.

Uses io_uring where the kernel has it (and _ring is True), else threads. Gives None, or the first run
that could not be read and its errno, 0 where the file ends. IndexError, and nothing read, if any run
does not fit into out.)");
    module.def("fetch_spans", fetch_spans_of, array_arg("fds"), array_arg("file"), array_arg("starts"),
               array_arg("sizes"), array_arg("least"), array_arg("out"), array_arg("out_starts"),
               nb::arg("threads") = 16, nb::arg("_ring") = true,
               R"(As fetch_runs, of several files: run i is of the file fds[file[i]].

least[i] bytes of it have to come: of a file that is read past the page cache, whole blocks are asked
for, and the last is cut short by the file's end.)");
    module.def("resident_fraction", resident_fraction_of, array_arg("mapping"), array_arg("starts"), array_arg("sizes"),
               nb::arg("each") = false,
               R"(How much of a few pages of these runs is in memory, 0 to 1; each: of a page of every run.

Linux answers only the owner of the file and those who may write it; to others it says 1.)");
    module.def("cached_fraction", cached_fraction_of, nb::arg("fd"), array_arg("starts"), array_arg("sizes"),
               "As resident_fraction, of an open file, for all who may read it; -1 where the kernel cannot tell.");
    module.def("prefixed_sizes", prefixed_sizes_of, nb::arg("fd"), array_arg("starts"), array_arg("sizes"),
               array_arg("counts"), nb::arg("past") = true, nb::arg("threads") = 8,
               R"(The sizes of cells that fill runs of a file, each behind its size in four bytes.

Past the page cache where they are not in it; not where all of it is being read into it.

counts[i] cells in run i; of which runs that is true is the second part, the sizes in others are
anything. IndexError if there is no room for so many.)");
    module.def("prefixed_sizes_in", prefixed_sizes_in, array_arg("memory"), array_arg("starts"), array_arg("sizes"),
               array_arg("counts"), "As prefixed_sizes, of memory.");
    module.def("will_need", will_need_of, array_arg("mapping"), array_arg("starts"), array_arg("sizes"),
               "Have the kernel begin to read these runs, without waiting for any.");
}

}  // namespace batchplant
