#include "../kernels/draw.hpp"
#include "../kernels/orders.hpp"

#include "bind.hpp"

#include <nanobind/stl/pair.h>

namespace batchplant {
namespace {

// One element for all numbers, or one for each.
class Broadcast {
public:
    Broadcast(const Borrowed<uint64_t>& values, size_t n, const char* name)
        : data_(values.data()), step_(values.size() != 1) {
        if (values.size() != 1 && values.size() != n) {
            throw std::invalid_argument(std::string(name) + " has " + std::to_string(values.size()) +
                                        " entries, not 1 or " + std::to_string(n));
        }
    }
    uint64_t operator[](size_t i) const { return data_[step_ * i]; }

private:
    const uint64_t* data_;
    size_t step_;
};

auto permute_all(const Int64s& at, const Borrowed<uint64_t>& count, const Borrowed<uint64_t>& key) {
    const size_t n = at.size();
    const Broadcast counts(count, n, "count"), keys(key, n, "key");
    auto made = std::make_unique_for_overwrite<int64_t[]>(n);
    int64_t* values = made.get();
    {
        nb::gil_scoped_release unlocked;
        for (size_t i = 0; i < n; ++i) {
            check_below(at.data()[i], counts[i]);
            values[i] = permute(at.data()[i], counts[i], keys[i]);
        }
    }
    return array_of(made, n);
}

auto derive_all(const Borrowed<uint64_t>& key, const Int64s& numbers) {
    const size_t n = numbers.size() == 1 ? key.size() : numbers.size();
    const Broadcast keys(key, n, "key");
    const size_t step = numbers.size() != 1;
    auto made = std::make_unique_for_overwrite<uint64_t[]>(n);
    uint64_t* values = made.get();
    for (size_t i = 0; i < n; ++i) {
        values[i] = derived(keys[i], numbers.data()[step * i]);
    }
    return array_of(made, n);
}

using ImageSizes = nb::ndarray<const int32_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;

auto random_boxes(const Borrowed<uint64_t>& keys, const ImageSizes& sizes, std::pair<double, double> scale,
                  std::pair<double, double> ratio, int tries, uint64_t first) {
    const size_t n = keys.size();
    if (sizes.shape(0) != n) throw std::invalid_argument("one size for each key is needed");
    const BoxRule rule{scale.first, scale.second, ratio.first, ratio.second, tries, first};
    auto made = std::make_unique_for_overwrite<double[]>(4 * n);
    double* boxes = made.get();
    for (size_t i = 0; i < n; ++i) {
        random_box(keys.data()[i], sizes.data()[2 * i], sizes.data()[2 * i + 1], rule, boxes + 4 * i);
    }
    return nb::ndarray<nb::numpy, double, nb::shape<-1, 4>>(boxes, {n, 4}, owner_of(made));
}

}  // namespace

void bind_permute(nb::module_& module) {
    module.def("random_boxes", random_boxes, array_arg("keys"), array_arg("sizes"), nb::arg("scale"), nb::arg("ratio"),
               nb::arg("tries"), nb::arg("first"), R"(A random box (x0, y0, x1, y1) in each image of (height, width).

first: the number of the first of 2 * tries + 2 draws that each sample's key gives.)");
    module.def("derive", derive_all, array_arg("key"), array_arg("numbers"),
               "A key of its own for each number; either may have one element for all of the other.");
    module.def("permute", permute_all, array_arg("at"), array_arg("count"), array_arg("key"),
               R"(Where each number below its count goes in the permutation that its key chooses.

count and key have one element for all numbers, or one for each.)");
}

}  // namespace batchplant
