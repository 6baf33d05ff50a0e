#include "../kernels/orders.hpp"

#include "bind.hpp"

namespace batchplant {
namespace {

// Positions are an array, or one number: of one, an array would cost more than the arithmetic.
template <typename Go>
Array<int64_t> each(const Int64s& at, const Go& go) {
    const size_t n = at.size();
    auto numbers = std::make_unique_for_overwrite<int64_t[]>(n);
    int64_t* values = numbers.get();
    {
        nb::gil_scoped_release unlocked;
        for (size_t i = 0; i < n; ++i) values[i] = go(at.data()[i]);
    }
    return array_of(numbers, n);
}

int64_t each(int64_t at, const auto& go) { return go(at); }

template <typename At>
auto shuffle(uint64_t count, uint64_t key, At at, bool back) {
    return each(at, Shuffle{count, key, back});
}

template <typename At>
auto shuffle_runs(uint64_t count, uint64_t size, const std::vector<int64_t>& phases, uint64_t key, At at) {
    if (size < 1 || size > longest_order || count > longest_order) throw std::invalid_argument("no run of that size");
    for (const int64_t phase : phases) {
        if (phase < 0 || static_cast<uint64_t>(phase) >= size) throw std::invalid_argument("no border in a run there");
    }
    return each(at, Runs{static_cast<int64_t>(count), static_cast<int64_t>(size), phases, key});
}

template <typename At>
auto shuffle_windows(const Int64s& edges, uint64_t key, At at) {
    return each(at, Windows{Borders(edges.data(), edges.size()), key});
}

template <typename At>
auto walk(const Int64s& turns, const Int64s& starts, const Int64s& firsts, const std::optional<Int64s>& rows, At at) {
    check_length("starts", starts.size(), turns.size() + 1);
    check_length("firsts", firsts.size(), turns.size() + 1);
    return each(at, Walk{Borders(starts.data(), starts.size()), turns.data(), firsts.data(), turns.size(),
                         rows ? rows->data() : nullptr, rows ? rows->size() : 0});
}

template <typename At>
auto in_lanes(uint64_t lanes, uint64_t size, uint64_t part, At at) {
    if (lanes < 1 || size < 1 || std::max(size, part) > longest_order / lanes) {
        throw std::invalid_argument("no lanes of that size");
    }
    return each(at, Lanes{static_cast<int64_t>(lanes), static_cast<int64_t>(size), static_cast<int64_t>(part)});
}

template <typename At>
void bind_all(nb::module_& module) {
    module.def("shuffle", shuffle<At>, nb::arg("count"), nb::arg("key"), array_arg("at"), nb::arg("back") = false,
               "Position of each number below the count in the permutation of the key; back: the inverse.");
    module.def("shuffle_runs", shuffle_runs<At>, nb::arg("count"), nb::arg("size"), nb::arg("phases"), nb::arg("key"),
               array_arg("at"), "The same within runs of one size, once for each phase: where the first one begins.");
    module.def("shuffle_windows", shuffle_windows<At>, array_arg("edges"), nb::arg("key"), array_arg("at"),
               "The same between every two edges, which ascend from 0.");
    module.def("walk", walk<At>, array_arg("turns"), array_arg("starts"), array_arg("firsts"),
               nb::arg("rows").noconvert().none(), array_arg("at"), R"(The samples of blocks that are taken by turns.

starts: the first position of each turn, and the end; firsts: where the samples of each block begin in
rows (or where that is None, among all samples), and the end.)");
    module.def("in_lanes", in_lanes<At>, nb::arg("lanes"), nb::arg("size"), nb::arg("each"), array_arg("at"),
               "Positions of lanes, each so long, that are taken from in turn, size at a time.");
}

}  // namespace

void bind_orders(nb::module_& module) {
    bind_all<int64_t>(module);
    bind_all<const Int64s&>(module);
}

}  // namespace batchplant
