#include "../records/parquet.hpp"

#include "bind.hpp"

namespace batchplant {
namespace {

parquet::Packed packed_of(const Bytes& data) { return {data.data(), data.size()}; }

parquet::Lists made(int depth, size_t values) {
    if (depth < 1 || depth > parquet::deepest) throw std::invalid_argument("lists of no such depth");
    if (values > INT32_MAX) throw std::invalid_argument("too many values");
    return {depth, values};
}

bool add(parquet::Lists& lists, const Bytes& repetition, const Bytes& definition, int present, size_t count) {
    if (present < 1 || present > 15) return false;
    nb::gil_scoped_release unlocked;
    return lists.add(packed_of(repetition), packed_of(definition), present, count);
}

std::vector<Array<int32_t>> offsets(parquet::Lists& lists) {
    std::vector<Array<int32_t>> found;
    for (auto& one : std::move(lists).offsets()) found.push_back(array_of(std::move(one)));
    return found;
}

template <typename T>
bool look_up(const Bytes& data, int width, const Borrowed<T>& dictionary,
             const nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>& out) {
    nb::gil_scoped_release unlocked;
    return parquet::look_up<T>(packed_of(data), width, {dictionary.data(), dictionary.size()},
                               {out.data(), out.size()});
}

}  // namespace

void bind_parquet(nb::module_& module) {
    nb::class_<parquet::Lists>(module, "ParquetLists",
                               "Lists in lists of a column of Parquet in which nothing is missing, page by page.")
        .def(
            "__init__",
            [](parquet::Lists* self, int depth, size_t values) { new (self) parquet::Lists(made(depth, values)); },
            nb::arg("depth"), nb::arg("values"))
        .def("add", add, array_arg("repetition"), array_arg("definition"), nb::arg("present"), nb::arg("count"),
             "A page by its levels; False, and it is of no use, where a value is missing.")
        .def("offsets", offsets, "Offsets of the lists of each depth, from outside in; only once.");
    const char* const told = "The entries that packed numbers name; False where there is none.";
    const auto bind = [&](auto function) {
        module.def("parquet_look_up", function, array_arg("data"), nb::arg("width"), array_arg("dictionary"),
                   array_arg("out"), told);
    };
    bind(look_up<uint8_t>);
    bind(look_up<uint16_t>);
    bind(look_up<uint32_t>);
    bind(look_up<uint64_t>);
}

}  // namespace batchplant
