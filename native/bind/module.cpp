#include "bind.hpp"

NB_MODULE(_native, module) {
    module.doc() = "batchplant's native core.";
    batchplant::bind_crc(module);
    batchplant::bind_bytes(module);
    batchplant::bind_probe(module);
    batchplant::bind_jpeg(module);
    batchplant::bind_image(module);
    batchplant::bind_engine(module);
    batchplant::bind_features(module);
}
