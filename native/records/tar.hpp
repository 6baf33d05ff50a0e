#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace batchplant {

constexpr int64_t tar_block = 512;

// An error, and its byte in the archive.
struct TarError : std::runtime_error {
    TarError(const std::string& message, int64_t at) : std::runtime_error(message), offset(at) {}
    int64_t offset;
};

// Reads the headers of a tar archive (V7, ustar, GNU, PAX) and groups its members into WebDataset samples:
// neighbours that share the path up to the first dot of its last component, the key. What comes after that
// dot, in lower case, is the extension.
//
// The archive may come in pieces: give scan() the bytes from next() on, until next() is its end.
class TarScanner {
public:
    // The longest name or PAX header that is taken for one; a piece of this size and two blocks more always
    // moves next() on.
    static constexpr int64_t longest_header = 16 << 20;

    // Takes `size` bytes of the archive, of which the first is the one at next(). `total` is the archive's size.
    void scan(const uint8_t* data, size_t size, int64_t total);
    // After the last piece: orders members by extension, then by sample.
    void finish();

    // Offset where the next header is expected; never beyond `total`.
    int64_t next() const { return next_; }

    // Samples: the key of sample i is keys[key_offsets[i] .. key_offsets[i + 1]), its first header at firsts[i].
    std::vector<uint8_t> keys;
    std::vector<int64_t> key_offsets{0};
    std::vector<int64_t> firsts;
    // Members: those of extension e are [extension_offsets[e], extension_offsets[e + 1]).
    std::vector<std::string> extensions;
    std::vector<int64_t> extension_offsets;
    std::vector<int64_t> rows;
    std::vector<int64_t> starts;
    std::vector<int64_t> sizes;
    // Members that belong to no sample: folders, links, names without an extension.
    int64_t skipped = 0;
    // The comment of the first PAX header that speaks for the whole archive.
    std::string comment;

private:
    struct Extension {
        int64_t number;
        int64_t last_row;
    };
    struct Hash {
        using is_transparent = void;
        size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
    };

    void take_pax(std::string_view payload, int64_t at, bool global);
    void take_member(const uint8_t* header, char type, std::string_view name, int64_t at, int64_t start, int64_t size);

    int64_t next_ = 0;
    bool seen_ = false;
    bool ended_ = false;
    // Fields that L and x headers set for the member after them.
    int64_t described_at_ = -1;
    bool has_name_ = false;
    bool name_is_pax_ = false;
    std::string name_;
    int64_t pax_size_ = -1;
    std::string lowered_;
    std::vector<int32_t> members_;
    std::unordered_map<std::string, Extension, Hash, std::equal_to<>> known_;
};

// True if the 512 bytes are a header whose checksum is right.
bool is_tar_header(const uint8_t* header);

// Appends what stands before the bytes of a member: a ustar header, and a PAX header before it where the name is
// longer than 100 bytes or the size has more than 11 octal digits.
void append_tar_header(std::vector<uint8_t>& out, std::string_view name, int64_t size);

// Appends a PAX header with one record that speaks for the whole archive.
void append_tar_comment(std::vector<uint8_t>& out, std::string_view comment);

}  // namespace batchplant
