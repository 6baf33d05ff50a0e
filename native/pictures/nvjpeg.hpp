#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace batchplant {

// JPEGs of `size` bytes each, from `start` on in one buffer, and the height and width that each is said to have. All
// arrays borrowed.
struct Encoded {
    const uint8_t* data;
    size_t bytes;
    const int64_t* start;
    const int64_t* size;
    const int64_t* shape;  // height, width
    size_t count;
};

// Where pixels go: memory of the device, from `address` on, `room` bytes; picture i at `place[i]`, its three planes one
// after the other without gaps: brightness (height, width), and both colours as small as they are stored, sides that do not
// halve rounded up.
struct OnDevice {
    uint64_t address;
    uint64_t room;
    const int64_t* place;
};

// NVIDIA's JPEG decoder. Its library is opened at run time: to build, nothing of CUDA is needed. It belongs to the
// device that was current when it was made, which has to be so in all calls; one thread at a time.
class NvJpeg {
public:
    // Throws std::runtime_error where there is no such library, or no device. With hardware, the device's circuits for
    // JPEG are used where it has some.
    explicit NvJpeg(const std::string& library, bool hardware = true);
    ~NvJpeg();
    NvJpeg(const NvJpeg&) = delete;
    NvJpeg& operator=(const NvJpeg&) = delete;

    // Whether circuits decode, or else the device's processors.
    bool hardware() const;

    // Decode all, on this CUDA stream; not done yet when this returns, and the encoded bytes have to stay until it is.
    // Throws std::invalid_argument where it does not take one of them, std::runtime_error where the device fails.
    void decode(const Encoded& encoded, const OnDevice& out, uint64_t stream);

private:
    struct Parts;
    std::unique_ptr<Parts> parts_;
};

}  // namespace batchplant
