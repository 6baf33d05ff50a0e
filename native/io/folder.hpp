#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace batchplant {

// The sizes and the times of the last change (in nanoseconds) of the files of a folder, which follow each other in
// `names`, each with a zero behind it; -1 of what is no file. Returns an errno if the folder cannot be opened, else 0.
int stat_files(const char* folder, std::string_view names, int64_t* sizes, int64_t* times);

}  // namespace batchplant
