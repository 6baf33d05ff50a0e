#include "tar.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "../io/bytes.hpp"

namespace batchplant {
namespace {

// Offsets and lengths of the fields of a header.
constexpr size_t name_size = 100;
constexpr size_t size_at = 124, size_size = 12;
constexpr size_t sum_at = 148, sum_size = 8;
constexpr size_t type_at = 156;
constexpr size_t magic_at = 257;
constexpr size_t prefix_at = 345, prefix_size = 155, star_prefix_size = 131;
constexpr size_t star_at = 508;

// The first size that 11 octal digits cannot say.
constexpr int64_t most_octal = int64_t{1} << 33;
constexpr int64_t most = std::numeric_limits<int64_t>::max() / 2;
// More extensions than this are names with dots in them, each of which would be a field.
constexpr size_t most_extensions = 4096;

std::string_view text_of(const uint8_t* data, size_t size) {
    const auto* text = reinterpret_cast<const char*>(data);
    return {text, strnlen(text, size)};
}

// Up to 200 bytes of a name, for messages; what is not printable ASCII is shown as a question mark.
std::string shown(std::string_view name) {
    std::string out(name.substr(0, 200));
    for (char& c : out) {
        if (c < 0x20 || c > 0x7e) c = '?';
    }
    return out;
}

// An octal number between blanks; -1 where it is none.
int64_t octal(const uint8_t* data, size_t size) {
    size_t i = 0;
    while (i < size && data[i] == ' ') ++i;
    int64_t value = 0;
    for (; i < size && data[i] >= '0' && data[i] <= '7'; ++i) value = value * 8 + (data[i] - '0');
    for (; i < size; ++i) {
        if (data[i] != ' ' && data[i] != 0) return -1;
    }
    return value;
}

// A size: octal, or base 256 where the first bit is set; -1 where it is none.
int64_t number(const uint8_t* data, size_t size) {
    if ((data[0] & 0x80) == 0) return octal(data, size);
    int64_t value = data[0] & 0x7f;
    for (size_t i = 1; i < size; ++i) {
        if (value > (most >> 8)) return -1;
        value = value << 8 | data[i];
    }
    return value;
}

bool is_zero(const uint8_t* data, size_t size) {
    return size == 0 || (data[0] == 0 && std::memcmp(data, data + 1, size - 1) == 0);
}

int64_t padded(int64_t size) { return (size + tar_block - 1) / tar_block * tar_block; }

bool is_ustar(const uint8_t* header) { return std::memcmp(header + magic_at, "ustar", 6) == 0; }

// Names of the form `key.extension`, where the last component of the key has a character before its dot. A dot
// file in a folder belongs to the folder's own name. Returns where the dot is, or npos: in no sample.
size_t dot_of(std::string_view name) {
    const size_t slash = name.rfind('/');
    const size_t base = slash == std::string_view::npos ? 0 : slash + 1;
    const size_t dot = name.find('.', base);
    if (dot == std::string_view::npos || dot + 1 == name.size()) return std::string_view::npos;
    if (dot > base) return dot;
    if (base == 0) return std::string_view::npos;
    const size_t above = slash == 0 ? std::string_view::npos : name.rfind('/', slash - 1);
    const size_t folder = above == std::string_view::npos ? 0 : above + 1;
    return name.find('.', folder) < slash ? std::string_view::npos : dot;
}

// Names whose first component is `__x__` are metadata.
bool is_meta(std::string_view name) {
    const std::string_view first = name.substr(0, name.find('/'));
    return first.size() >= 4 && first.substr(0, 2) == "__" && first.substr(first.size() - 2) == "__";
}

}  // namespace

bool is_tar_header(const uint8_t* header) {
    const int64_t stored_sum = octal(header + sum_at, sum_size);
    if (stored_sum <= 0) return false;
    uint32_t sum = 0;
    for (size_t i = 0; i < static_cast<size_t>(tar_block); ++i) sum += header[i];
    uint32_t own = 0;
    for (size_t i = 0; i < sum_size; ++i) own += header[sum_at + i];
    const int64_t unsigned_sum = static_cast<int64_t>(sum) - own + sum_size * ' ';
    if (stored_sum == unsigned_sum) return true;
    // Some old programs added signed characters.
    int64_t high = 0;
    for (size_t i = 0; i < static_cast<size_t>(tar_block); ++i) {
        if (i < sum_at || i >= sum_at + sum_size) high += header[i] >> 7;
    }
    return stored_sum == unsigned_sum - 256 * high;
}

void TarScanner::scan(const uint8_t* data, size_t size, int64_t total) {
    const int64_t base = next_;
    const int64_t end = base + static_cast<int64_t>(size);
    while (next_ < end) {
        const int64_t at = next_;
        const uint8_t* header = data + (at - base);
        const int64_t left = std::min(total - at, tar_block);
        if (end - at < left) return;
        if (is_zero(header, static_cast<size_t>(left))) {
            // The end of an archive; another one may follow.
            if (described_at_ >= 0) throw TarError("the header of a long name has no member after it", described_at_);
            ended_ = seen_ = true;
            next_ = at + left;
            continue;
        }
        if (left < tar_block) throw TarError("the archive is cut short inside a header", at);
        if (!is_tar_header(header)) {
            const char* message = ended_  ? "there is something behind the end of the archive"
                                  : seen_ ? "the header of a member is damaged: its checksum is wrong"
                                          : "this is not a tar archive: its first header is damaged";
            throw TarError(message, at);
        }
        seen_ = true;
        const char type = static_cast<char>(header[type_at]);
        int64_t bytes = number(header + size_at, size_size);
        const bool special = type == 'L' || type == 'K' || type == 'x' || type == 'X' || type == 'g';
        if (!special && pax_size_ >= 0) bytes = pax_size_;
        // Links, devices, folders and pipes have no bytes, whatever their size says.
        if (type >= '1' && type <= '6') bytes = 0;
        if (bytes < 0) throw TarError("the size of a member is not a number", at);
        const int64_t start = at + tar_block;
        if (bytes > total - start) {
            throw TarError("the archive is cut short: a member of " + std::to_string(bytes) +
                               " bytes begins here, and " + std::to_string(total - start) + " follow",
                           at);
        }
        // The padding of the last member may be missing.
        const int64_t after = std::min(start + padded(bytes), total);
        if (special) {
            if (bytes > longest_header) throw TarError("a header of " + std::to_string(bytes) + " bytes", at);
            if (start + bytes > end) return;
            const std::string_view payload(reinterpret_cast<const char*>(data + (start - base)),
                                           static_cast<size_t>(bytes));
            if (type == 'L') {
                if (!name_is_pax_) {
                    name_ = payload.substr(0, payload.find('\0'));
                    has_name_ = true;
                }
                described_at_ = at;
            } else if (type != 'K') {
                take_pax(payload, at, type == 'g');
                if (type != 'g') described_at_ = at;
            }
        } else {
            std::string_view name = text_of(header, name_size);
            if (has_name_) {
                name = name_;
            } else if (is_ustar(header) && header[prefix_at] != 0) {
                const bool star = std::memcmp(header + star_at, "tar", 4) == 0;
                name_ = text_of(header + prefix_at, star ? star_prefix_size : prefix_size);
                name_ += '/';
                name_ += name;
                name = name_;
            }
            take_member(header, type, name, at, start, bytes);
            described_at_ = pax_size_ = -1;
            has_name_ = name_is_pax_ = false;
        }
        next_ = after;
    }
}

void TarScanner::take_pax(std::string_view payload, int64_t at, bool global) {
    // Records `LENGTH KEY=VALUE\n`; the length counts all of the record.
    while (!payload.empty() && payload[0] != '\0') {
        size_t length = 0, digits = 0;
        while (digits < payload.size() && digits < 9 && payload[digits] >= '0' && payload[digits] <= '9') {
            length = length * 10 + static_cast<size_t>(payload[digits++] - '0');
        }
        const size_t equals = payload.find('=');
        if (digits == 0 || digits >= payload.size() || payload[digits] != ' ' || length > payload.size() ||
            equals == std::string_view::npos || equals <= digits + 1 || equals + 2 > length ||
            payload[length - 1] != '\n') {
            throw TarError("a PAX header is damaged", at);
        }
        const std::string_view key = payload.substr(digits + 1, equals - digits - 1);
        const std::string_view value = payload.substr(equals + 1, length - equals - 2);
        payload.remove_prefix(length);
        if (key == "comment") {
            if (global && comment.empty()) comment = value;
        } else if (key == "path" || key == "size") {
            // No writer emits these for a whole archive, and a long name for every member could fill the memory.
            if (global) throw TarError("a PAX header gives all members one " + std::string(key), at);
            if (key == "path") {
                // No value means: as if it were not there.
                has_name_ = name_is_pax_ = !value.empty();
                name_ = value;
                continue;
            }
            int64_t bytes = value.empty() ? -1 : 0;
            for (const char c : value) {
                if (c < '0' || c > '9' || bytes > most / 10 - 1) throw TarError("a PAX header is damaged", at);
                bytes = bytes * 10 + (c - '0');
            }
            pax_size_ = bytes;
        } else if (key.substr(0, 11) == "GNU.sparse.") {
            throw TarError("a sparse member; write the archive anew without --sparse", at);
        }
    }
}

void TarScanner::take_member(const uint8_t* header, char type, std::string_view name, int64_t at, int64_t start,
                             int64_t size) {
    if (type == 'S') throw TarError("a sparse member; write the archive anew without --sparse", at);
    const bool regular = type == '0' || type == '7' || type == '\0';
    // V7 has no type for folders.
    const bool folder = type == '\0' && !is_ustar(header) && !name.empty() && name.back() == '/';
    if (!regular || folder || is_meta(name)) {
        ++skipped;
        return;
    }
    const size_t dot = dot_of(name);
    if (dot == std::string_view::npos) {
        ++skipped;
        return;
    }
    const std::string_view key = name.substr(0, dot);
    lowered_ = name.substr(dot + 1);
    for (char& c : lowered_) {
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + ('a' - 'A'));
    }
    const auto last = key_offsets.size() < 2 ? 0 : static_cast<size_t>(key_offsets[key_offsets.size() - 2]);
    const std::string_view before(reinterpret_cast<const char*>(keys.data()) + last, keys.size() - last);
    if (firsts.empty() || key != before) {
        keys.insert(keys.end(), key.begin(), key.end());
        key_offsets.push_back(static_cast<int64_t>(keys.size()));
        firsts.push_back(described_at_ >= 0 ? described_at_ : at);
    }
    const auto row = static_cast<int64_t>(firsts.size()) - 1;
    auto entry = known_.find(std::string_view(lowered_));
    if (entry == known_.end()) {
        if (known_.size() == most_extensions) {
            throw TarError("more than " + std::to_string(most_extensions) + " different extensions, here " +
                               shown(lowered_) +
                               "; an extension begins at the first dot of a name, so names must have none before it",
                           at);
        }
        entry = known_.emplace(lowered_, Extension{static_cast<int64_t>(extensions.size()), -1}).first;
        extensions.push_back(lowered_);
    }
    if (entry->second.last_row == row) {
        throw TarError("the sample " + shown(key) + " has two members with the extension " + shown(lowered_), at);
    }
    entry->second.last_row = row;
    members_.push_back(static_cast<int32_t>(entry->second.number));
    rows.push_back(row);
    starts.push_back(start);
    sizes.push_back(size);
}

void TarScanner::finish() {
    if (described_at_ >= 0) throw TarError("the header of a long name has no member after it", described_at_);
    extension_offsets.assign(extensions.size() + 1, 0);
    for (const int32_t one : members_) ++extension_offsets[static_cast<size_t>(one) + 1];
    for (size_t i = 1; i < extension_offsets.size(); ++i) extension_offsets[i] += extension_offsets[i - 1];
    for (std::vector<int64_t>* column : {&rows, &starts, &sizes}) {
        std::vector<int64_t> at(extension_offsets);
        std::vector<int64_t> sorted(column->size());
        for (size_t i = 0; i < column->size(); ++i) {
            sorted[static_cast<size_t>(at[static_cast<size_t>(members_[i])]++)] = (*column)[i];
        }
        column->swap(sorted);
    }
    members_.clear();
}

namespace {

void put_octal(uint8_t* at, size_t digits, int64_t value) {
    for (size_t i = digits; i-- > 0; value >>= 3) at[i] = static_cast<uint8_t>('0' + (value & 7));
}

// One header; a name that is too long is cut, for a PAX header has told it.
void append_block(std::vector<uint8_t>& out, std::string_view name, int64_t size, char type) {
    const size_t at = out.size();
    out.resize(at + tar_block, 0);
    uint8_t* header = out.data() + at;
    std::memcpy(header, name.data(), std::min(name.size(), name_size));
    std::memcpy(header + 100,
                "0000444\0"
                "0000000\0"
                "0000000",
                23);
    put_octal(header + size_at, 11, size < most_octal ? size : 0);
    put_octal(header + 136, 11, 0);
    header[type_at] = static_cast<uint8_t>(type);
    std::memcpy(header + magic_at,
                "ustar\0"
                "00",
                8);
    std::memset(header + sum_at, ' ', sum_size);
    int64_t sum = 0;
    for (size_t i = 0; i < static_cast<size_t>(tar_block); ++i) sum += header[i];
    put_octal(header + sum_at, 6, sum);
    header[sum_at + 6] = 0;
}

void append_padded(std::vector<uint8_t>& out, std::string_view payload) {
    out.insert(out.end(), payload.begin(), payload.end());
    out.resize(static_cast<size_t>(padded(static_cast<int64_t>(out.size()))), 0);
}

std::string pax_record(std::string_view key, std::string_view value) {
    const size_t rest = key.size() + value.size() + 3;
    size_t length = rest + 1;
    while (rest + std::to_string(length).size() != length) ++length;
    std::string record = std::to_string(length);
    record += ' ';
    record += key;
    record += '=';
    record += value;
    record += '\n';
    return record;
}

}  // namespace

void append_tar_header(std::vector<uint8_t>& out, std::string_view name, int64_t size) {
    std::string records;
    if (name.size() > name_size) records += pax_record("path", name);
    if (size >= most_octal) records += pax_record("size", std::to_string(size));
    if (!records.empty()) {
        append_block(out, "PaxHeader", static_cast<int64_t>(records.size()), 'x');
        append_padded(out, records);
    }
    append_block(out, name, size, '0');
}

void append_tar_comment(std::vector<uint8_t>& out, std::string_view comment) {
    const std::string record = pax_record("comment", comment);
    append_block(out, "pax_global_header", static_cast<int64_t>(record.size()), 'g');
    append_padded(out, record);
}

}  // namespace batchplant
