#include "../io/folder.hpp"

#include "bind.hpp"

#include <cerrno>

namespace batchplant {
namespace {

auto stat_all(const std::string& folder, const nb::bytes& names) {
    const std::string_view all(names.c_str(), names.size());
    if (!all.empty() && all.back() != '\0') throw std::invalid_argument("a zero has to stand behind every name");
    const auto n = static_cast<size_t>(std::count(all.begin(), all.end(), '\0'));
    auto sizes = std::make_unique_for_overwrite<int64_t[]>(n), times = std::make_unique_for_overwrite<int64_t[]>(n);
    int failed = 0;
    {
        nb::gil_scoped_release unlocked;
        failed = stat_files(folder.c_str(), all, sizes.get(), times.get());
    }
    if (failed != 0) {
        errno = failed;
        PyErr_SetFromErrnoWithFilename(PyExc_OSError, folder.c_str());
        throw nb::python_error();
    }
    return std::tuple(array_of(sizes, n), array_of(times, n));
}

}  // namespace

void bind_folder(nb::module_& module) {
    module.def(
        "stat_files",
        [](const nb::bytes& folder, const nb::bytes& names) { return stat_all(string_of(folder), names); },
        nb::arg("folder"), nb::arg("names"),
        R"(Sizes and times of the last change, in nanoseconds, of the files of a folder.

names: one after another, each with a zero behind it. -1 of what is no file.)");
}

}  // namespace batchplant
