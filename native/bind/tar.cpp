#include "../records/tar.hpp"

#include "bind.hpp"

namespace batchplant {
namespace {

// An error, and its byte.
using Failure = std::optional<std::tuple<std::string, int64_t>>;

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

nb::typed<nb::dict, nb::str, nb::any> finish(TarScanner& scanner, Failure failure) {
    nb::dict found;
    found["failure"] = nb::cast(failure);
    nb::list extensions;
    for (const std::string& one : scanner.extensions) extensions.append(bytes_of(one));
    found["extensions"] = extensions;
    found["keys"] = copy_of(scanner.keys);
    found["key_offsets"] = copy_of(scanner.key_offsets);
    found["firsts"] = copy_of(scanner.firsts);
    found["extension_offsets"] = copy_of(scanner.extension_offsets);
    found["rows"] = copy_of(scanner.rows);
    found["starts"] = copy_of(scanner.starts);
    found["sizes"] = copy_of(scanner.sizes);
    found["skipped"] = scanner.skipped;
    found["comment"] = bytes_of(scanner.comment);
    return found;
}

bool is_header(const Bytes& data) {
    return data.size() >= static_cast<size_t>(tar_block) && is_tar_header(data.data());
}

std::tuple<Array<uint8_t>, Array<int64_t>> headers(const Bytes& names, const Int64s& offsets, const Int64s& sizes) {
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
    return {array_of(std::move(out)), array_of(std::move(ends))};
}

nb::bytes comment(const nb::bytes& text) {
    std::vector<uint8_t> out;
    append_tar_comment(out, {text.c_str(), text.size()});
    return nb::bytes(out.data(), out.size());
}

}  // namespace

void bind_tar(nb::module_& module) {
    nb::class_<TarScanner>(module, "TarScanner",
                           R"(Reads the headers of a tar archive and groups its members into samples.

The archive may come in pieces: give scan the bytes from next on, until next is its end. A piece of
16 MiB and two blocks, or all that is left, moves it on.)")
        .def(nb::init<>())
        .def("scan", scan, array_arg("data"), nb::arg("total"),
             "Take the bytes from next on of an archive of total bytes; what is wrong, and where.")
        .def(
            "finish", [](TarScanner& scanner) { return finish(scanner, caught([&] { scanner.finish(); })); },
            R"(After the last bytes: failure (None, or what is wrong and where), and what was found.

keys, key_offsets, firsts: the key and the first header of every sample. extensions: bytes.
rows, starts, sizes: sample, place and size of every member, by extension (extension_offsets).
skipped: members in no sample. comment: of the first PAX header for the whole archive.)")
        .def_prop_ro("next", &TarScanner::next, "Offset where the next header is expected.");
    module.def("is_tar_header", is_header, array_arg("data"),
               "Return True if the bytes begin with a tar header whose checksum is right.");
    module.def("tar_headers", headers, array_arg("names"), array_arg("offsets"), array_arg("sizes"),
               "Headers before the bytes of each member, one after another, and their offsets.");
    module.def("tar_comment", comment, nb::arg("text"), "A PAX header with a comment on the whole archive.");
}

}  // namespace batchplant
