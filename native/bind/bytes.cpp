#include "../bytes.hpp"

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

}  // namespace

void bind_bytes(nb::module_& module) {
    module.def("copy_runs", copy_runs_of, nb::arg("src").noconvert(), nb::arg("src_starts").noconvert(),
               nb::arg("sizes").noconvert(), nb::arg("dst").noconvert(), nb::arg("dst_starts").noconvert(),
               "Copy runs of src to their places in dst; nothing is copied when any run is out of bounds.");
}

}  // namespace batchplant
