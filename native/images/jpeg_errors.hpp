#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdio>

// It assumes that <cstdio> came before it.
#include <jpeglib.h>

namespace batchplant {

// libjpeg reports an error by calling error_exit, which must not return. longjmp skips destructors, so the
// rule in the files that include this is: a function that calls setjmp, and every function between it and libjpeg,
// holds only trivially destructible objects. Errors become exceptions one level above, in plain C++.
struct Errors {
    jpeg_error_mgr manager;  // first, so that libjpeg's pointer to it is a pointer to this
    std::jmp_buf jump;
    char message[JMSG_LENGTH_MAX];
    size_t warnings;
    bool strict;
};

// Has a codec report to `errors`; returns what goes into its member `err`.
jpeg_error_mgr* install(Errors& errors);

}  // namespace batchplant
