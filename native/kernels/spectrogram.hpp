#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace batchplant {

// A discrete Fourier transform of one length, of several signals side by side: what is done to one number is done to a
// vector of them.
class Fourier {
public:
    explicit Fourier(size_t length);

private:
    friend class Spectrogram;
    struct Stage {
        size_t radix, groups, stride;
        std::vector<std::complex<float>> twiddles;  // of each group: radix - 1, from the first power on
    };
    size_t length_;
    std::vector<Stage> stages_;
    std::vector<std::complex<float>> roots_;  // of every radix that has no formula of its own, one after another
};

struct Filters {
    // Filter i is weights[offsets[i]] up to weights[offsets[i + 1]], from bin firsts[i] on.
    std::vector<int64_t> firsts, offsets;
    std::vector<float> weights;
};

// Short-time spectra of real signals: windows of one length, a hop apart.
class Spectrogram {
public:
    // window: as long as a transform, at least 2. power: of the absolute values; filters: of bins, none for the bins
    // themselves. Throws std::invalid_argument if a filter leaves the bins.
    Spectrogram(std::vector<float> window, size_t hop, bool centered, double power, Filters filters);

    size_t frames(size_t length) const;  // that a signal of this length has
    size_t rows() const { return filters_.firsts.empty() ? bins_ : filters_.firsts.size(); }
    size_t length() const { return window_.size(); }
    bool centered() const { return centered_; }

    // Writes row r of frame t to out[r * row_stride + t * frame_stride]. A signal that is centered is mirrored at its
    // ends and must be longer than half a window.
    void run(const float* signal, size_t length, float* out, size_t row_stride, size_t frame_stride) const;

private:
    std::vector<float> window_;
    size_t hop_, bins_;
    bool centered_, halved_;  // halved: two real numbers as a complex one, for windows of even length
    double power_;
    Filters filters_;
    Fourier fourier_;
    std::vector<std::complex<float>> split_;  // what takes the two apart again
};

}  // namespace batchplant
