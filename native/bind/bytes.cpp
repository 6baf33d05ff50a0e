#include "../io/bytes.hpp"

#include "bind.hpp"

namespace batchplant {
namespace {

void copy_runs_of(const Bytes& src, const Int64s& src_starts, const Int64s& sizes, const MutableBytes& dst,
                  const Int64s& dst_starts) {
    check_same_length(src_starts, "src_starts", sizes, "sizes");
    check_same_length(dst_starts, "dst_starts", sizes, "sizes");
    nb::gil_scoped_release unlocked;
    const int64_t bad = copy_runs(src.data(), src.size(), src_starts.data(), sizes.data(), dst.data(), dst.size(),
                                  dst_starts.data(), sizes.size());
    if (bad >= 0) throw_bad_run(bad);
}

int64_t bad_run(const Int64s& starts, const Int64s& sizes, int64_t first, int64_t end) {
    check_same_length(starts, "starts", sizes, "sizes");
    return first_bad_run(starts.data(), sizes.data(), sizes.size(), first, end);
}

bool are_below(const Int64s& numbers, int64_t end) {
    // Negative ones are large without their sign. No branch, and nothing that waits for the one before, so that it
    // runs over several at a time.
    const uint64_t most = end > 0 ? static_cast<uint64_t>(end) : 0;
    const int64_t* const data = numbers.data();
    const size_t n = numbers.size();
    uint64_t beyond = 0;
    for (size_t i = 0; i < n; ++i) beyond |= static_cast<uint64_t>(data[i]) >= most;
    return beyond == 0;
}

auto fill(const Int64s& sizes, int64_t limit, int64_t most, int64_t held, int64_t taken) {
    std::vector<int64_t> bounds;
    const int64_t* const data = sizes.data();
    const size_t n = sizes.size();
    {
        nb::gil_scoped_release unlocked;
        for (size_t i = 0; i < n; ++i) {
            const int64_t size = std::max<int64_t>(data[i], 0);
            // Written so that no sum can overflow.
            if (held == most || (held > 0 && size > limit - taken)) {
                bounds.push_back(static_cast<int64_t>(i));
                held = taken = 0;
            }
            taken += size;
            ++held;
        }
    }
    return std::tuple(array_of(std::move(bounds)), held, taken);
}

}  // namespace

void bind_bytes(nb::module_& module) {
    module.def("copy_runs", copy_runs_of, array_arg("src"), array_arg("src_starts"), array_arg("sizes"),
               array_arg("dst"), array_arg("dst_starts"),
               "Copy runs of src to their places in dst. IndexError, and nothing copied, if any is out of bounds.");
    module.def("bad_run", bad_run, array_arg("starts"), array_arg("sizes"), nb::arg("first"), nb::arg("end"),
               "The first run that does not lie between first and end, or -1.");
    module.def("are_below", are_below, array_arg("numbers"), nb::arg("end"),
               "Return True if all numbers are from 0 up to, not including, end.");
    module.def("fill", fill, array_arg("sizes"), nb::arg("limit"), nb::arg("most"), nb::arg("held"), nb::arg("taken"),
               R"(Which samples begin a new file, where files are filled up to limit bytes and most samples.

held, taken: the samples and bytes of the file that is being filled; returned as they are at the end.)");
}

}  // namespace batchplant
