#include "../kernels/lookup.hpp"
#include "../images/changes.hpp"
#include "../images/engine.hpp"

#include <exception>
#include <mutex>

#include "bind.hpp"

namespace batchplant {
namespace {

using Images = nb::ndarray<uint8_t, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using Codes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Amounts = nb::ndarray<const double, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

void check_changes(const Images& images, const Codes& codes, const Amounts& amounts, const Bytes& fill) {
    const size_t count = images.shape(0), steps = codes.shape(1);
    check_length("codes", codes.shape(0), count);
    check_length("fill", fill.size(), images.shape(3));
    if (amounts.shape(0) != count || amounts.shape(1) != steps || amounts.shape(2) != amounts_of_change) {
        throw std::invalid_argument("amounts are six for each code");
    }
    if (std::any_of(codes.data(), codes.data() + codes.size(), [](uint8_t code) { return code >= changes; })) {
        throw std::invalid_argument("there is no such change");
    }
}

// work(index, worker) for every index below n: on the threads of the engine, or here where there is none. What the
// first of them throws that fails is thrown.
template <typename Work>
void share(Engine* engine, size_t n, const Work& work) {
    if (engine == nullptr) {
        for (size_t i = 0; i < n; ++i) work(i, 0);
        return;
    }
    std::mutex lock;
    std::exception_ptr error;
    engine->share(n, [&](size_t index, size_t worker) noexcept {
        try {
            work(index, worker);
        } catch (...) {
            const std::lock_guard guard(lock);
            if (error == nullptr) error = std::current_exception();
        }
    });
    if (error != nullptr) std::rethrow_exception(error);
}

// One for each thread, made when it is needed.
class Changers {
public:
    Changers(const Engine* engine, const Bytes& fill, bool smooth)
        : fill_(fill.data()), smooth_(smooth), made_(engine == nullptr ? 1 : engine->threads()) {}
    Changer& operator[](size_t worker) {
        if (made_[worker] == nullptr) made_[worker] = std::make_unique<Changer>(fill_, smooth_);
        return *made_[worker];
    }

private:
    const uint8_t* fill_;
    bool smooth_;
    std::vector<std::unique_ptr<Changer>> made_;
};

Image image_at(const Images& images, size_t index) {
    const Image first{images.data(), images.shape(1), images.shape(2), images.shape(3)};
    return {first.pixels + index * first.bytes(), first.height, first.width, first.channels};
}

void change(const Images& images, const Codes& codes, const Amounts& amounts, const Bytes& fill, bool smooth,
            Engine* engine) {
    check_changes(images, codes, amounts, fill);
    const size_t steps = codes.shape(1);
    nb::gil_scoped_release unlocked;
    Changers changers(engine, fill, smooth);
    share(engine, images.shape(0), [&](size_t i, size_t worker) {
        for (size_t step = i * steps; step < (i + 1) * steps; ++step) {
            changers[worker].apply(image_at(images, i), static_cast<Change>(codes.data()[step]),
                                   amounts.data() + step * amounts_of_change);
        }
    });
}

using Weights = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void mix_changed(const Images& images, const Codes& codes, const Amounts& amounts, const Weights& weights,
                 const Bytes& fill, bool smooth, Engine* engine) {
    check_changes(images, codes, amounts, fill);
    const size_t count = images.shape(0), steps = codes.shape(1);
    check_length("weights", weights.shape(0), count);
    if (weights.shape(1) < 2 || steps % (weights.shape(1) - 1) != 0) {
        throw std::invalid_argument("weights are one more than chains, and chains have as many codes each");
    }
    const size_t chains = weights.shape(1) - 1;
    nb::gil_scoped_release unlocked;
    Changers changers(engine, fill, smooth);
    share(engine, count, [&](size_t i, size_t worker) {
        changers[worker].mix(image_at(images, i), chains, steps / chains, codes.data() + i * steps,
                             amounts.data() + i * steps * amounts_of_change, weights.data() + i * (chains + 1));
    });
}

void noise(const Images& images, const Borrowed<uint64_t>& keys, const Borrowed<float>& sigmas,
           const Borrowed<float>& quantiles, Engine* engine) {
    const size_t count = images.shape(0), size = images.shape(1) * images.shape(2) * images.shape(3);
    check_length("keys", keys.size(), count);
    check_length("sigmas", sigmas.size(), count);
    check_length("quantiles", quantiles.size(), 4096);
    nb::gil_scoped_release unlocked;
    share(engine, count, [&](size_t i, size_t) {
        if (sigmas.data()[i] == 0) return;
        add_noise(images.data() + i * size, size, keys.data()[i], sigmas.data()[i], quantiles.data());
    });
}

template <typename T>
void look_up_all(const Bytes& pixels,
                 const nb::ndarray<const T, nb::shape<-1, 256>, nb::c_contig, nb::device::cpu>& tables,
                 const nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>& out, size_t plane, Engine* engine) {
    const size_t channels = tables.shape(0), size = pixels.size();
    check_length("out", out.size(), size);
    if (size == 0) return;
    if (channels == 0 || plane > size || size % (channels * std::max<size_t>(plane, 1)) != 0) {
        throw std::invalid_argument("pixels have a table for each channel, and images whole planes");
    }
    nb::gil_scoped_release unlocked;
    // Without planes, any part will do.
    constexpr size_t some = 1 << 16;
    const size_t part = (plane == 0 ? some : plane) * channels;
    share(engine, (size + part - 1) / part, [&](size_t i, size_t) {
        const size_t at = i * part, count = std::min(part, size - at) / channels;
        const auto look = plane == 0 ? look_up_pixels<T> : look_up_planes<T>;
        look(tables.data(), pixels.data() + at, count, channels, out.data() + at);
    });
}

template <typename T>
void bind_look_up(nb::module_& module) {
    module.def("look_up", look_up_all<T>, array_arg("pixels"), array_arg("tables"), array_arg("out"),
               nb::arg("plane") = 0, nb::arg("engine") = nb::none(),
               R"(The value of every byte, by the tables of its channel: (channels, 256), of what out is.

plane: the pixels of an image, whose channels then come behind each other.)");
}

}  // namespace

void bind_changes(nb::module_& module) {
    bind_look_up<uint16_t>(module);
    bind_look_up<uint32_t>(module);
    bind_look_up<uint64_t>(module);
    module.def("change_images", change, array_arg("images"), array_arg("codes"), array_arg("amounts"),
               array_arg("fill"), nb::arg("smooth"), nb::arg("engine") = nb::none(),
               R"(Change images (n, height, width, channels) in place, on the threads of an engine.

codes: (n, steps), what is done to each, one after the other (ops.changes.Change); amounts: six for each
code. fill, one for each channel: what comes from outside of an image that is moved; smooth: moved
pixels are blended of four.)");
    module.def("mix_changed", mix_changed, array_arg("images"), array_arg("codes"), array_arg("amounts"),
               array_arg("weights"), array_arg("fill"), nb::arg("smooth"), nb::arg("engine") = nb::none(),
               R"(Add up images as they are and after each of some chains of changes, by weight, in place.

codes, amounts, fill, smooth: as change_images takes them, those of one chain after those of another.
weights: (n, 1 + chains), that of the image itself first.)");
    module.def("add_noise", noise, array_arg("images"), array_arg("keys"), array_arg("sigmas"), array_arg("quantiles"),
               nb::arg("engine") = nb::none(),
               R"(Add noise to images (n, height, width, channels) in place, by the key of each.

quantiles: 4096 of the distribution. A sigma of 0 leaves an image as it is.)");
}

}  // namespace batchplant
