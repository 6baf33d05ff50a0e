#include "../records/tar.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "../io/bytes.hpp"
#include "bind.hpp"

namespace batchplant {
namespace {

// What is wrong, and at which byte.
using Failure = std::optional<std::tuple<std::string, int64_t>>;

template <typename T>
using ArrayOut = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <typename T>
ArrayOut<T> array_of(const std::vector<T>& values) {
    auto memory = std::make_unique_for_overwrite<T[]>(values.size());
    std::copy(values.begin(), values.end(), memory.get());
    T* data = memory.get();
    return ArrayOut<T>(data, {values.size()}, owner_of(memory));
}

nb::bytes bytes_of(const std::string& text) { return nb::bytes(text.data(), text.size()); }

template <typename Work>
Failure caught(Work work) {
    nb::gil_scoped_release unlocked;
    try {
        work();
    } catch (const TarError& error) {
        return std::make_tuple(std::string(error.what()), error.offset);
    }
    return std::nullopt;
}

Failure scan(TarScanner& scanner, const Bytes& data, int64_t total) {
    if (total < scanner.next() || data.size() > static_cast<uint64_t>(total - scanner.next())) {
        throw std::invalid_argument("more bytes than the archive has");
    }
    return caught([&] { scanner.scan(data.data(), data.size(), total); });
}

nb::dict finish(TarScanner& scanner, Failure failure) {
    nb::dict found;
    found["failure"] = nb::cast(failure);
    nb::list extensions;
    for (const std::string& one : scanner.extensions) extensions.append(bytes_of(one));
    found["extensions"] = extensions;
    found["keys"] = array_of(scanner.keys);
    found["key_offsets"] = array_of(scanner.key_offsets);
    found["firsts"] = array_of(scanner.firsts);
    found["extension_offsets"] = array_of(scanner.extension_offsets);
    found["rows"] = array_of(scanner.rows);
    found["starts"] = array_of(scanner.starts);
    found["sizes"] = array_of(scanner.sizes);
    found["skipped"] = scanner.skipped;
    found["comment"] = bytes_of(scanner.comment);
    return found;
}

int64_t without_header(const Bytes& data, const Int64s& starts, const Int64s& sizes) {
    check_same_length(starts, "starts", sizes, "sizes");
    nb::gil_scoped_release unlocked;
    return first_without_header(data.data(), data.size(), starts.data(), sizes.data(), sizes.size());
}

bool is_header(const Bytes& data) {
    return data.size() >= static_cast<size_t>(tar_block) && is_tar_header(data.data());
}

std::tuple<ArrayOut<uint8_t>, ArrayOut<int64_t>> headers(const Bytes& names, const Int64s& offsets,
                                                        const Int64s& sizes) {
    if (offsets.size() != sizes.size() + 1) throw std::invalid_argument("names and sizes differ in number");
    std::vector<uint8_t> out;
    std::vector<int64_t> ends{0};
    {
        nb::gil_scoped_release unlocked;
        const size_t n = sizes.size();
        out.reserve(n * static_cast<size_t>(tar_block));
        ends.reserve(n + 1);
        for (size_t i = 0; i < n; ++i) {
            const int64_t start = offsets.data()[i];
            const int64_t end = offsets.data()[i + 1];
            if (end < start || !run_fits(start, end - start, names.size()) || sizes.data()[i] < 0) {
                throw_bad_run(static_cast<int64_t>(i));
            }
            append_tar_header(out,
                              {reinterpret_cast<const char*>(names.data()) + start, static_cast<size_t>(end - start)},
                              sizes.data()[i]);
            ends.push_back(static_cast<int64_t>(out.size()));
        }
    }
    return {array_of(out), array_of(ends)};
}

nb::bytes comment(const nb::bytes& text) {
    std::vector<uint8_t> out;
    append_tar_comment(out, {text.c_str(), text.size()});
    return nb::bytes(out.data(), out.size());
}

}  // namespace

void bind_tar(nb::module_& module) {
    nb::class_<TarScanner>(module, "TarScanner", "Reads the headers of a tar archive and groups its members.")
        .def(nb::init<>())
        .def("scan", scan, nb::arg("data").noconvert(), nb::arg("total"),
             "Take the bytes from `next` on; None, or (what is wrong, at which byte).")
        .def(
            "finish",
            [](TarScanner& scanner) { return finish(scanner, caught([&] { scanner.finish(); })); },
            "After the last bytes: what was found.")
        .def_prop_ro("next", &TarScanner::next, "Where the next header is expected.");
    module.def("tar_without_header", without_header, nb::arg("data").noconvert(), nb::arg("starts").noconvert(),
               nb::arg("sizes").noconvert(), "The first run that lies behind no header of a file of its size, or -1.");
    module.def("is_tar_header", is_header, nb::arg("data").noconvert(), "Whether the bytes begin with a tar header.");
    module.def("tar_headers", headers, nb::arg("names").noconvert(), nb::arg("offsets").noconvert(),
               nb::arg("sizes").noconvert(), "What stands before the bytes of each member, and where each ends.");
    module.def("tar_comment", comment, nb::arg("text"), "A header with a comment on the whole archive.");
}

}  // namespace batchplant
