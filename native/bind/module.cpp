#include "bind.hpp"

NB_MODULE(_native, module) {
    module.doc() = R"(The native core.

Functions that work on many bytes release the GIL. Arrays are read in place, never converted: one of
another dtype, or one that is not contiguous, is a TypeError. A *run* is a start and a size in an
array of bytes; runs may overlap.)";
    // At exit Python does not always release what a script still holds; such leaks are not reported.
    nanobind::set_leak_warnings(false);
    batchplant::bind_crc(module);
    batchplant::bind_bytes(module);
    batchplant::bind_folder(module);
    batchplant::bind_probe(module);
    batchplant::bind_jpeg(module);
    batchplant::bind_image(module);
    batchplant::bind_png(module);
    batchplant::bind_engine(module);
    batchplant::bind_changes(module);
    batchplant::bind_lease(module);
    batchplant::bind_permute(module);
    batchplant::bind_spectrogram(module);
    batchplant::bind_orders(module);
    batchplant::bind_packing(module);
    batchplant::bind_msgpack(module);
    batchplant::bind_datum(module);
    batchplant::bind_recordio(module);
    batchplant::bind_riegeli(module);
    batchplant::bind_tfrecord(module);
    batchplant::bind_example(module);
    batchplant::bind_fetch(module);
    batchplant::bind_gather(module);
    batchplant::bind_tar(module);
    batchplant::bind_text(module);
    batchplant::bind_rle(module);
    batchplant::bind_sparse(module);
    batchplant::bind_parquet(module);
    batchplant::bind_chunks(module);
    batchplant::bind_features(module);
}
