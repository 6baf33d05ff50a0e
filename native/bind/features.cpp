#include "../io/crc.hpp"
#include "../io/fetch.hpp"
#include "../images/jpeg.hpp"
#include "../kernels/kernels.hpp"
#include "../images/png.hpp"
#include "../images/webp.hpp"
#include "bind.hpp"

namespace batchplant {

void bind_features(nb::module_& module) {
    module.def(
        "features",
        [] {
            nb::dict features;
            features["crc32"] = crc32_name();
            features["crc32c"] = crc32c_name();
            features["fetch"] = fetch_name();
            features["jpeg"] = jpeg_library().c_str();
            features["png"] = png_library().c_str();
            features["webp"] = webp_library().c_str();
            features["pixels"] = best_kernels().name;
            return nb::typed<nb::dict, nb::str, nb::str>(features);
        },
        "Libraries and instructions that this build uses on this machine, by unit of native/.");
    module.def(
        "kernel_sets",
        [] {
            std::vector<std::string> names;
            for (const Kernels* one : all_kernels()) names.emplace_back(one->name);
            return names;
        },
        "The loops over pixels that this machine can run, by name; first those that it uses.");
}

}  // namespace batchplant
