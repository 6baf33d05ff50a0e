#include "jpeg_errors.hpp"

#include <jerror.h>

namespace batchplant {
namespace {

[[noreturn]] void fail(j_common_ptr codec) {
    auto* errors = reinterpret_cast<Errors*>(codec->err);
    codec->err->format_message(codec, errors->message);
    std::longjmp(errors->jump, 1);
}

void on_message(j_common_ptr codec, int level) {
    const bool is_warning = level < 0;
    if (!is_warning) return;
    auto* errors = reinterpret_cast<Errors*>(codec->err);
    ++errors->warnings;
    switch (codec->err->msg_code) {
        case JWRN_EXTRANEOUS_DATA:
        case JWRN_JFIF_MAJOR:
        case JWRN_ADOBE_XFORM: return;
        // libjpeg would go on with made-up pixels.
        default:
            if (errors->strict) fail(codec);
    }
}

}  // namespace

jpeg_error_mgr* install(Errors& errors) {
    jpeg_std_error(&errors.manager);
    errors.manager.error_exit = fail;
    errors.manager.emit_message = on_message;
    errors.message[0] = '\0';
    errors.warnings = 0;
    errors.strict = true;
    return &errors.manager;
}

}  // namespace batchplant
