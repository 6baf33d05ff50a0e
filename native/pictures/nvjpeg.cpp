#include "nvjpeg.hpp"

#include <dlfcn.h>

#include <limits>
#include <optional>
#include <stdexcept>
#include <vector>

#include "../io/bytes.hpp"
#include "probe.hpp"

namespace batchplant {
namespace {

// The part of nvJPEG's interface that is used, which has not changed since CUDA 11. Handles are pointers to what only
// nvJPEG knows.
using Handle = void*;
using Status = int;

enum : Status { success = 0, bad_jpeg = 3, not_supported = 4, incomplete = 10 };
enum Backend : int { gpu_hybrid = 2, hardware_backend = 3 };
// As they are stored: whoever wants other colours makes them himself, in the way of libjpeg.
constexpr int planes_of_yuv = 1;

// nvjpegImage_t
struct Destination {
    uint8_t* channel[4];
    size_t pitch[4];
};

struct Library {
    Status (*create)(int backend, void*, void*, unsigned flags, Handle* library);
    Status (*destroy)(Handle library);
    Status (*create_state)(Handle library, Handle* state);
    Status (*destroy_state)(Handle state);
    Status (*create_stream)(Handle library, Handle* header);
    Status (*destroy_stream)(Handle header);
    Status (*parse_header)(Handle library, const uint8_t* data, size_t size, Handle header);
    Status (*dimensions)(Handle header, unsigned* width, unsigned* height);
    Status (*unsupported)(Handle library, Handle header, int* unsupported);
    Status (*initialize)(Handle library, Handle state, int batch, int threads, int format);
    Status (*decode)(Handle library, Handle state, const uint8_t* const* data, const size_t* sizes, Destination* out,
                     void* stream);

    // It stays open: what it started may outlive whoever asked for it.
    explicit Library(const std::string& name) {
        void* opened = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (opened == nullptr) {
            const char* why = dlerror();
            throw std::runtime_error(why != nullptr ? why : name + " cannot be opened");
        }
        find(opened, name, "nvjpegCreateEx", create);
        find(opened, name, "nvjpegDestroy", destroy);
        find(opened, name, "nvjpegJpegStateCreate", create_state);
        find(opened, name, "nvjpegJpegStateDestroy", destroy_state);
        find(opened, name, "nvjpegJpegStreamCreate", create_stream);
        find(opened, name, "nvjpegJpegStreamDestroy", destroy_stream);
        find(opened, name, "nvjpegJpegStreamParseHeader", parse_header);
        find(opened, name, "nvjpegJpegStreamGetFrameDimensions", dimensions);
        find(opened, name, "nvjpegDecodeBatchedSupported", unsupported);
        find(opened, name, "nvjpegDecodeBatchedInitialize", initialize);
        find(opened, name, "nvjpegDecodeBatched", decode);
    }

    template <typename Function>
    static void find(void* opened, const std::string& name, const char* symbol, Function& function) {
        function = reinterpret_cast<Function>(dlsym(opened, symbol));
        if (function == nullptr) throw std::runtime_error(name + " has no " + symbol);
    }
};

void check(Status status, const char* what) {
    if (status == success) return;
    const std::string message = std::string("nvJPEG cannot ") + what + " (status " + std::to_string(status) + ")";
    // The pictures' fault, or the device's.
    if (status == bad_jpeg || status == not_supported || status == incomplete) throw std::invalid_argument(message);
    throw std::runtime_error(message);
}

}  // namespace

struct NvJpeg::Parts {
    Library api;
    Handle library = nullptr;
    Handle state = nullptr;
    Handle header = nullptr;
    bool hardware = false;
    size_t batch = 0;

    Parts(const std::string& name, bool try_hardware) : api(name) {
        hardware = try_hardware && api.create(hardware_backend, nullptr, nullptr, 0, &library) == success;
        if (!hardware) check(api.create(gpu_hybrid, nullptr, nullptr, 0, &library), "use the device");
        try {
            check(api.create_state(library, &state), "make a decoder");
            check(api.create_stream(library, &header), "make a parser");
        } catch (...) {
            close();
            throw;
        }
    }
    ~Parts() { close(); }
    Parts(const Parts&) = delete;
    Parts& operator=(const Parts&) = delete;

    void close() {
        if (header != nullptr) api.destroy_stream(header);
        if (state != nullptr) api.destroy_state(state);
        if (library != nullptr) api.destroy(library);
    }

    // How its colours are stored, if nvJPEG sees in it what we do and the device can do all of it.
    std::optional<DeviceJpeg> takes(const Encoded& encoded, size_t i) const {
        const int64_t start = encoded.start[i];
        const int64_t size = encoded.size[i];
        if (!run_fits(start, size, encoded.bytes)) return std::nullopt;
        const uint8_t* data = encoded.data + start;
        const int64_t* shape = encoded.shape + 2 * i;
        const DeviceJpeg found = device_jpeg(data, static_cast<size_t>(size), shape[0], shape[1]);
        if (found.header == 0 || api.parse_header(library, data, found.header, header) != success) return std::nullopt;
        unsigned width = 0;
        unsigned height = 0;
        int unsupported = 1;
        const bool same = api.dimensions(header, &width, &height) == success && height == shape[0] && width == shape[1];
        const bool can = !hardware || (api.unsupported(library, header, &unsupported) == success && unsupported == 0);
        return same && can ? std::optional(found) : std::nullopt;
    }
};

NvJpeg::NvJpeg(const std::string& library, bool hardware) : parts_(std::make_unique<Parts>(library, hardware)) {}
NvJpeg::~NvJpeg() = default;

bool NvJpeg::hardware() const { return parts_->hardware; }

void NvJpeg::decode(const Encoded& encoded, const OnDevice& out, uint64_t stream) {
    const size_t n = encoded.count;
    if (n == 0) return;
    if (n > static_cast<size_t>(std::numeric_limits<int>::max())) throw std::runtime_error("too many pictures");
    std::vector<const uint8_t*> data(n);
    std::vector<size_t> sizes(n);
    std::vector<Destination> destinations(n);
    for (size_t i = 0; i < n; ++i) {
        const std::optional<DeviceJpeg> found = parts_->takes(encoded, i);
        if (!found) throw std::invalid_argument("nvJPEG does not take picture " + std::to_string(i));
        // Both sides are those of a JPEG now, below 65,536.
        const int64_t height = encoded.shape[2 * i], width = encoded.shape[2 * i + 1];
        const int64_t line = (width + found->across - 1) / found->across;
        const int64_t brightness = height * width, colour = (height + found->down - 1) / found->down * line;
        if (!run_fits(out.place[i], brightness + 2 * colour, out.room)) {
            throw std::out_of_range("picture " + std::to_string(i) + " has no room");
        }
        data[i] = encoded.data + encoded.start[i];
        sizes[i] = static_cast<size_t>(encoded.size[i]);
        destinations[i] = {};
        auto* const first = reinterpret_cast<uint8_t*>(out.address + static_cast<uint64_t>(out.place[i]));
        for (const int64_t plane : {0, 1, 2}) {
            destinations[i].channel[plane] = first + (plane == 0 ? 0 : brightness + (plane - 1) * colour);
            destinations[i].pitch[plane] = static_cast<size_t>(plane == 0 ? width : line);
        }
    }
    Parts& parts = *parts_;
    if (n != parts.batch) {
        parts.batch = 0;
        check(parts.api.initialize(parts.library, parts.state, static_cast<int>(n), 1, planes_of_yuv),
              "prepare a batch");
        parts.batch = n;
    }
    check(parts.api.decode(parts.library, parts.state, data.data(), sizes.data(), destinations.data(),
                           reinterpret_cast<void*>(stream)),
          "decode a batch");
}

}  // namespace batchplant
