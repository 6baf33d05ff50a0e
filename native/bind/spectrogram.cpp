#include "../kernels/spectrogram.hpp"

#include "bind.hpp"

namespace batchplant {
namespace {

using Floats = Borrowed<float>;
using Signals = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Spectra = nb::ndarray<float, nb::ndim<3>, nb::device::cpu>;

template <typename T>
std::vector<T> vector_of(const Borrowed<T>& given) {
    return {given.data(), given.data() + given.size()};
}

void run(const Spectrogram& made, const Signals& signals, const Spectra& out) {
    const size_t count = signals.shape(0), length = signals.shape(1), frames = made.frames(length);
    if (out.shape(0) != count || out.shape(1) != made.rows() || out.shape(2) != frames) {
        throw std::invalid_argument("out must have the shape (signals, rows, frames)");
    }
    for (size_t axis = 0; axis < 3; ++axis) {
        if (out.stride(axis) < 0) throw std::invalid_argument("out must not run backwards");
    }
    nb::gil_scoped_release unlocked;
    for (size_t i = 0; i < count; ++i) {
        made.run(signals.data() + i * length, length, out.data() + i * out.stride(0),
                 static_cast<size_t>(out.stride(1)), static_cast<size_t>(out.stride(2)));
    }
}

}  // namespace

void bind_spectrogram(nb::module_& module) {
    nb::class_<Spectrogram>(module, "Spectrogram", R"(Short-time spectra of real signals.

Windows of one length, hop apart, each transformed; absolute values to a power; filters are sums of bins.)")
        .def(
            "__init__",
            [](Spectrogram* self, const Floats& window, size_t hop, bool centered, double power, const Int64s& firsts,
               const Int64s& offsets, const Floats& weights) {
                new (self) Spectrogram(vector_of(window), hop, centered, power,
                                       {vector_of(firsts), vector_of(offsets), vector_of(weights)});
            },
            array_arg("window"), nb::arg("hop"), nb::arg("centered"), nb::arg("power"), array_arg("firsts"),
            array_arg("offsets"), array_arg("weights"), R"(window: as long as a transform.

centered: the signal is mirrored at its ends, so that frame t is around number t * hop; a signal must
be longer than half a window. Filter i has weights[offsets[i]:offsets[i + 1]], from bin firsts[i] on;
without filters all bins are given.)")
        .def("frames", &Spectrogram::frames, nb::arg("length"), "Number of frames of a signal of this length.")
        .def("run", run, array_arg("signals"), array_arg("out"),
             "Transform signals (n x length) into out (n x rows x frames), which may have any strides.");
}

}  // namespace batchplant
