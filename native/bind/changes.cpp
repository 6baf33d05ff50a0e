#include "../kernels/lookup.hpp"
#include "../pictures/changes.hpp"

#include "bind.hpp"

namespace batchplant {
namespace {

using Pictures = nb::ndarray<uint8_t, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using Codes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Amounts = nb::ndarray<const double, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

void check_changes(const Pictures& pictures, const Codes& codes, const Amounts& amounts, const Bytes& fill) {
    const size_t count = pictures.shape(0), steps = codes.shape(1);
    check_length("codes", codes.shape(0), count);
    check_length("fill", fill.size(), pictures.shape(3));
    if (amounts.shape(0) != count || amounts.shape(1) != steps || amounts.shape(2) != amounts_of_change) {
        throw std::invalid_argument("amounts are six for each code");
    }
    if (std::any_of(codes.data(), codes.data() + codes.size(), [](uint8_t code) { return code >= changes; })) {
        throw std::invalid_argument("there is no such change");
    }
}

void change(const Pictures& pictures, const Codes& codes, const Amounts& amounts, const Bytes& fill, bool smooth) {
    check_changes(pictures, codes, amounts, fill);
    const size_t count = pictures.shape(0), steps = codes.shape(1);
    nb::gil_scoped_release unlocked;
    Changer changer(fill.data(), smooth);
    Picture picture{pictures.data(), pictures.shape(1), pictures.shape(2), pictures.shape(3)};
    for (size_t i = 0; i < count; ++i, picture.pixels += picture.bytes()) {
        for (size_t step = i * steps; step < (i + 1) * steps; ++step) {
            changer.apply(picture, static_cast<Change>(codes.data()[step]), amounts.data() + step * amounts_of_change);
        }
    }
}

using Weights = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void mix_changed(const Pictures& pictures, const Codes& codes, const Amounts& amounts, const Weights& weights,
                 const Bytes& fill, bool smooth) {
    check_changes(pictures, codes, amounts, fill);
    const size_t count = pictures.shape(0), steps = codes.shape(1);
    check_length("weights", weights.shape(0), count);
    if (weights.shape(1) < 2 || steps % (weights.shape(1) - 1) != 0) {
        throw std::invalid_argument("weights are one more than chains, and chains have as many codes each");
    }
    const size_t chains = weights.shape(1) - 1;
    nb::gil_scoped_release unlocked;
    Changer changer(fill.data(), smooth);
    Picture picture{pictures.data(), pictures.shape(1), pictures.shape(2), pictures.shape(3)};
    for (size_t i = 0; i < count; ++i, picture.pixels += picture.bytes()) {
        changer.mix(picture, chains, steps / chains, codes.data() + i * steps,
                    amounts.data() + i * steps * amounts_of_change, weights.data() + i * (chains + 1));
    }
}

void noise(const Pictures& pictures, const Borrowed<uint64_t>& keys, const Borrowed<float>& sigmas,
           const Borrowed<float>& quantiles) {
    const size_t count = pictures.shape(0), size = pictures.shape(1) * pictures.shape(2) * pictures.shape(3);
    check_length("keys", keys.size(), count);
    check_length("sigmas", sigmas.size(), count);
    check_length("quantiles", quantiles.size(), 4096);
    nb::gil_scoped_release unlocked;
    for (size_t i = 0; i < count; ++i) {
        if (sigmas.data()[i] == 0) continue;
        add_noise(pictures.data() + i * size, size, keys.data()[i], sigmas.data()[i], quantiles.data());
    }
}

template <typename T>
void look_up_all(const Bytes& pixels,
                 const nb::ndarray<const T, nb::shape<-1, 256>, nb::c_contig, nb::device::cpu>& tables,
                 const nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>& out, size_t plane) {
    const size_t channels = tables.shape(0), picture = plane * channels;
    check_length("out", out.size(), pixels.size());
    if (channels == 0 || pixels.size() % (plane == 0 ? channels : picture) != 0) {
        throw std::invalid_argument("pixels have a table for each channel, and pictures whole planes");
    }
    nb::gil_scoped_release unlocked;
    if (plane == 0) return look_up_pixels(tables.data(), pixels.data(), pixels.size() / channels, channels, out.data());
    for (size_t at = 0; at < pixels.size(); at += picture) {
        look_up_planes(tables.data(), pixels.data() + at, plane, channels, out.data() + at);
    }
}

template <typename T>
void bind_look_up(nb::module_& module) {
    module.def("look_up", look_up_all<T>, array_arg("pixels"), array_arg("tables"), array_arg("out"),
               nb::arg("plane") = 0, R"(The value of every byte, by the tables of its channel: (channels, 256), of what out is.

plane: the pixels of a picture, whose channels then come behind each other.)");
}

}  // namespace

void bind_changes(nb::module_& module) {
    bind_look_up<uint16_t>(module);
    bind_look_up<uint32_t>(module);
    bind_look_up<uint64_t>(module);
    module.def("change_pictures", change, array_arg("pictures"), array_arg("codes"), array_arg("amounts"),
               array_arg("fill"), nb::arg("smooth"), R"(Change pictures (n, height, width, channels) in place.

codes: (n, steps), what is done to each, one after the other (ops.changes.Change); amounts: six for each
code. fill, one for each channel: what comes from outside of a picture that is moved; smooth: moved
pixels are blended of four.)");
    module.def("mix_changed", mix_changed, array_arg("pictures"), array_arg("codes"), array_arg("amounts"),
               array_arg("weights"), array_arg("fill"), nb::arg("smooth"),
               R"(Add up pictures as they are and after each of some chains of changes, by weight, in place.

codes, amounts, fill, smooth: as change_pictures takes them, those of one chain after those of another.
weights: (n, 1 + chains), that of the picture itself first.)");
    module.def("add_noise", noise, array_arg("pictures"), array_arg("keys"), array_arg("sigmas"),
               array_arg("quantiles"), R"(Add noise to pictures (n, height, width, channels) in place, by the key of each.

quantiles: 4096 of the distribution. A sigma of 0 leaves a picture as it is.)");
}

}  // namespace batchplant
