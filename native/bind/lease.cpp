#include "bind.hpp"

namespace batchplant {
namespace {

using Memory = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// The object too: it is what goes back to the shelf.
using OwnedMemory = nb::typed<nb::object, Memory>;

// Owner of a leased array: the memory, and the pool that it returns to when the array is released.
struct Lease {
    nb::object memory;
    nb::list shelf;
    size_t most;
};

// Not in Python: an interrupt (Ctrl-C) that arrives while a destructor runs Python code is lost.
void give_back(void* held) noexcept {
    const nb::gil_scoped_acquire locked;
    auto* lease = static_cast<Lease*>(held);
    {
        const nb::error_scope kept;
        const bool room = nb::len(lease->shelf) < lease->most;
        if (room && PyList_Append(lease->shelf.ptr(), lease->memory.ptr()) != 0) PyErr_Clear();
    }
    delete lease;
}

Memory lend(const Memory& memory, const nb::object& owner, const nb::list& shelf, size_t most) {
    const nb::capsule held(new Lease{owner, shelf, most}, give_back);
    return Memory(memory.data(), {memory.size()}, held);
}

}  // namespace

void bind_lease(nb::module_& module) {
    module.def(
        "lend",
        [](const OwnedMemory& memory, const nb::typed<nb::list, nb::any>& shelf, size_t most) {
            return lend(nb::cast<Memory>(memory, false), memory, shelf, most);
        },
        nb::arg("memory"), nb::arg("shelf"), nb::arg("most"),
        R"(Give the same bytes as an array that puts memory on the shelf once nothing refers to them.

Unless the shelf has so many already. No Python code runs then.)");
}

}  // namespace batchplant
