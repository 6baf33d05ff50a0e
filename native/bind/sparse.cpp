#include "bind.hpp"

namespace batchplant {
namespace {

// Of any dtype.
using Values = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Dense = nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <typename Value, typename Index>
void fill(const Int64s& indptr, const Index* columns, const Value* values, size_t count, const Int64s& places,
          const Dense& out) {
    const size_t rows = out.shape(0), width = out.shape(1);
    const int64_t *starts = indptr.data(), *place_of = places.data();
    auto* row = static_cast<Value*>(out.data());
    for (size_t i = 0; i < rows; ++i, row += width) {
        if (starts[i] < 0 || starts[i] > starts[i + 1] || static_cast<uint64_t>(starts[i + 1]) > count) {
            throw_bad_run(static_cast<int64_t>(i));
        }
        for (int64_t k = starts[i]; k < starts[i + 1]; ++k) {
            // A negative number is a large one.
            const auto column = static_cast<uint64_t>(static_cast<int64_t>(columns[k]));
            if (column >= places.size()) throw_bad_run(static_cast<int64_t>(i));
            const int64_t place = place_of[column];
            if (place < 0) continue;
            if (static_cast<uint64_t>(place) >= width) throw_bad_run(static_cast<int64_t>(i));
            row[place] = static_cast<Value>(row[place] + values[k]);
        }
    }
}

template <typename Value, typename... Others>
void fill_any(const Int64s& indptr, const Values& indices, const Values& values, const Int64s& places,
              const Dense& out) {
    if (values.dtype() == nb::dtype<Value>() && out.dtype() == nb::dtype<Value>()) {
        const auto* numbers = static_cast<const Value*>(values.data());
        const bool narrow = indices.dtype() == nb::dtype<int32_t>();
        if (!narrow && indices.dtype() != nb::dtype<int64_t>()) throw nb::type_error("indices are int32 or int64");
        nb::gil_scoped_release unlocked;
        if (narrow) {
            fill(indptr, static_cast<const int32_t*>(indices.data()), numbers, values.size(), places, out);
        } else {
            fill(indptr, static_cast<const int64_t*>(indices.data()), numbers, values.size(), places, out);
        }
    } else if constexpr (sizeof...(Others) > 0) {
        fill_any<Others...>(indptr, indices, values, places, out);
    } else {
        throw nb::type_error("values are no numbers, or of another dtype than out");
    }
}

void fill_rows(const Int64s& indptr, const Values& indices, const Values& values, const Int64s& places,
               const Dense& out) {
    check_length("indptr", indptr.size(), out.shape(0) + 1);
    check_length("values", values.size(), indices.size());
    fill_any<float, double, bool, uint8_t, uint16_t, uint32_t, uint64_t>(indptr, indices, values, places, out);
}

}  // namespace

void bind_sparse(nb::module_& module) {
    module.def("fill_rows", fill_rows, array_arg("indptr"), array_arg("indices"), array_arg("values"),
               array_arg("places"), array_arg("out"),
               R"(Add values of CSR rows to the rows of a dense array of their dtype.

places: for each column where it goes in a row of out, or -1. IndexError for a column that is not there.)");
}

}  // namespace batchplant
