#include "spectrogram.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <stdexcept>
#include <utility>

namespace batchplant {
namespace {

// So many windows are transformed side by side. The compiler makes of it what the machine has.
constexpr size_t lanes = 8;
typedef float Lanes __attribute__((vector_size(lanes * sizeof(float)), aligned(32)));

struct Complex {
    Lanes re, im;
};

inline void multiply(Complex& z, std::complex<float> by) {
    const Lanes re = z.re * by.real() - z.im * by.imag();
    z.im = z.re * by.imag() + z.im * by.real();
    z.re = re;
}

std::complex<float> root(size_t power, size_t length) {
    const double angle = -2 * std::numbers::pi * static_cast<double>(power % length) / static_cast<double>(length);
    return {static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))};
}

inline void butterfly2(Complex* x) {
    const Complex a = x[0], b = x[1];
    x[0] = {a.re + b.re, a.im + b.im};
    x[1] = {a.re - b.re, a.im - b.im};
}

inline void butterfly3(Complex* x) {
    constexpr float half = 0.5f, sine = 0.86602540378443865f;
    const Lanes sum_re = x[1].re + x[2].re, sum_im = x[1].im + x[2].im;
    const Lanes turn_re = sine * (x[1].im - x[2].im), turn_im = sine * (x[2].re - x[1].re);
    const Lanes mid_re = x[0].re - half * sum_re, mid_im = x[0].im - half * sum_im;
    x[0] = {x[0].re + sum_re, x[0].im + sum_im};
    x[1] = {mid_re + turn_re, mid_im + turn_im};
    x[2] = {mid_re - turn_re, mid_im - turn_im};
}

inline void butterfly4(Complex* x) {
    const Lanes a_re = x[0].re + x[2].re, a_im = x[0].im + x[2].im;
    const Lanes b_re = x[0].re - x[2].re, b_im = x[0].im - x[2].im;
    const Lanes c_re = x[1].re + x[3].re, c_im = x[1].im + x[3].im;
    // Turned by minus i.
    const Lanes d_re = x[1].im - x[3].im, d_im = x[3].re - x[1].re;
    x[0] = {a_re + c_re, a_im + c_im};
    x[1] = {b_re + d_re, b_im + d_im};
    x[2] = {a_re - c_re, a_im - c_im};
    x[3] = {b_re - d_re, b_im - d_im};
}

inline void butterfly5(Complex* x) {
    constexpr float c1 = 0.30901699437494742f, c2 = -0.80901699437494742f;
    constexpr float s1 = 0.95105651629515357f, s2 = 0.58778525229247313f;
    const Lanes p_re = x[1].re + x[4].re, p_im = x[1].im + x[4].im;
    const Lanes q_re = x[2].re + x[3].re, q_im = x[2].im + x[3].im;
    const Lanes u_re = x[1].im - x[4].im, u_im = x[4].re - x[1].re;
    const Lanes v_re = x[2].im - x[3].im, v_im = x[3].re - x[2].re;
    const Lanes a_re = x[0].re + c1 * p_re + c2 * q_re, a_im = x[0].im + c1 * p_im + c2 * q_im;
    const Lanes b_re = x[0].re + c2 * p_re + c1 * q_re, b_im = x[0].im + c2 * p_im + c1 * q_im;
    const Lanes d_re = s1 * u_re + s2 * v_re, d_im = s1 * u_im + s2 * v_im;
    const Lanes e_re = s2 * u_re - s1 * v_re, e_im = s2 * u_im - s1 * v_im;
    x[0] = {x[0].re + p_re + q_re, x[0].im + p_im + q_im};
    x[1] = {a_re + d_re, a_im + d_im};
    x[2] = {b_re + e_re, b_im + e_im};
    x[3] = {b_re - e_re, b_im - e_im};
    x[4] = {a_re - d_re, a_im - d_im};
}

// Stockham's way: every stage reads one buffer and writes another in the order of the next, so nothing is reordered.
template <size_t radix, typename Butterfly>
void stage(const Complex* in, Complex* out, size_t groups, size_t stride, const std::complex<float>* twiddles,
           Butterfly butterfly) {
    for (size_t group = 0; group < groups; ++group, twiddles += radix - 1) {
        for (size_t at = 0; at < stride; ++at) {
            Complex x[radix];
            for (size_t j = 0; j < radix; ++j) x[j] = in[at + stride * (group + groups * j)];
            butterfly(x);
            Complex* const to = out + at + stride * radix * group;
            to[0] = x[0];
            for (size_t k = 1; k < radix; ++k) {
                multiply(x[k], twiddles[k - 1]);
                to[stride * k] = x[k];
            }
        }
    }
}

void any_stage(const Complex* in, Complex* out, size_t radix, size_t groups, size_t stride,
               const std::complex<float>* twiddles, const std::complex<float>* roots) {
    for (size_t group = 0; group < groups; ++group, twiddles += radix - 1) {
        for (size_t at = 0; at < stride; ++at) {
            for (size_t k = 0; k < radix; ++k) {
                Complex sum = in[at + stride * group];
                for (size_t j = 1; j < radix; ++j) {
                    Complex x = in[at + stride * (group + groups * j)];
                    multiply(x, roots[j * k % radix]);
                    sum.re += x.re;
                    sum.im += x.im;
                }
                if (k > 0) multiply(sum, twiddles[k - 1]);
                out[at + stride * (radix * group + k)] = sum;
            }
        }
    }
}

}  // namespace

Fourier::Fourier(size_t length) : length_(length) {
    size_t left = length, stride = 1;
    for (size_t radix : {4, 2, 3, 5}) {
        while (left % radix == 0 && left > 1) {
            stages_.push_back({radix, left / radix, stride, {}});
            left /= radix;
            stride *= radix;
        }
    }
    for (size_t radix = 7; left > 1; radix += 2) {
        if (radix * radix > left) radix = left;
        while (left % radix == 0) {
            stages_.push_back({radix, left / radix, stride, {}});
            left /= radix;
            stride *= radix;
        }
    }
    for (Stage& one : stages_) {
        const size_t size = one.radix * one.groups;
        for (size_t group = 0; group < one.groups; ++group) {
            for (size_t k = 1; k < one.radix; ++k) one.twiddles.push_back(root(group * k, size));
        }
        if (one.radix > 5) {
            for (size_t k = 0; k < one.radix; ++k) roots_.push_back(root(k, one.radix));
        }
    }
}

Spectrogram::Spectrogram(std::vector<float> window, size_t hop, bool centered, double power, Filters filters)
    : window_(std::move(window)),
      hop_(hop),
      bins_(window_.size() / 2 + 1),
      centered_(centered),
      halved_(window_.size() % 2 == 0),
      power_(power),
      filters_(std::move(filters)),
      fourier_(halved_ ? window_.size() / 2 : window_.size()) {
    if (window_.size() < 2 || hop_ < 1) throw std::invalid_argument("no window of that length");
    const Filters& all = filters_;
    if (!all.firsts.empty() && all.offsets.size() != all.firsts.size() + 1) {
        throw std::invalid_argument("filters need one offset more than there are of them");
    }
    for (size_t i = 0; i < all.firsts.size(); ++i) {
        const int64_t from = all.offsets[i], count = all.offsets[i + 1] - from, first = all.firsts[i];
        const int64_t bins = static_cast<int64_t>(bins_), most = static_cast<int64_t>(all.weights.size());
        if (from < 0 || count < 0 || count > bins || from > most - count || first < 0 || first > bins - count) {
            throw std::invalid_argument("a filter leaves the bins");
        }
    }
    if (halved_) {
        for (size_t k = 0; k < bins_; ++k) split_.push_back(root(k, window_.size()));
    }
}

size_t Spectrogram::frames(size_t length) const {
    const size_t size = window_.size();
    if (centered_) return length > size / 2 ? 1 + (length + 2 * (size / 2) - size) / hop_ : 0;
    return length < size ? 0 : 1 + (length - size) / hop_;
}

void Spectrogram::run(const float* signal, size_t length, float* out, size_t row_stride, size_t frame_stride) const {
    const size_t total = frames(length), size = window_.size(), points = fourier_.length_;
    const int64_t begin = centered_ ? -static_cast<int64_t>(size / 2) : 0, end = static_cast<int64_t>(length);
    // Two buffers, and the powers of all bins.
    std::vector<Complex> scratch(2 * points);
    const auto powers = std::make_unique<Lanes[]>(bins_);
    std::vector<float> edge(lanes * size);
    const float* from[lanes];
    for (size_t first = 0; first < total; first += lanes) {
        const size_t count = std::min(lanes, total - first);
        for (size_t lane = 0; lane < lanes; ++lane) {
            // Lanes that are not needed do what the last one does.
            const size_t frame = first + std::min(lane, count - 1);
            const int64_t start = begin + static_cast<int64_t>(frame * hop_);
            if (start >= 0 && start + static_cast<int64_t>(size) <= end) {
                from[lane] = signal + start;
                continue;
            }
            float* const copy = edge.data() + lane * size;
            for (size_t i = 0; i < size; ++i) {
                int64_t at = start + static_cast<int64_t>(i);
                if (at < 0) at = -at;
                if (at >= end) at = 2 * end - 2 - at;
                copy[i] = signal[at];
            }
            from[lane] = copy;
        }
        Complex *x = scratch.data(), *y = x + points;
        for (size_t i = 0; i < points; ++i) {
            Lanes re{}, im{};
            const size_t even = halved_ ? 2 * i : i;
            for (size_t lane = 0; lane < lanes; ++lane) re[lane] = from[lane][even];
            if (halved_) {
                for (size_t lane = 0; lane < lanes; ++lane) im[lane] = from[lane][even + 1];
                im *= window_[even + 1];
            }
            x[i] = {re * window_[even], im};
        }
        const std::complex<float>* roots = fourier_.roots_.data();
        for (const Fourier::Stage& one : fourier_.stages_) {
            const auto* twiddles = one.twiddles.data();
            switch (one.radix) {
                case 2: stage<2>(x, y, one.groups, one.stride, twiddles, butterfly2); break;
                case 3: stage<3>(x, y, one.groups, one.stride, twiddles, butterfly3); break;
                case 4: stage<4>(x, y, one.groups, one.stride, twiddles, butterfly4); break;
                case 5: stage<5>(x, y, one.groups, one.stride, twiddles, butterfly5); break;
                default: any_stage(x, y, one.radix, one.groups, one.stride, twiddles, roots); roots += one.radix;
            }
            std::swap(x, y);
        }
        for (size_t k = 0; k < bins_; ++k) {
            if (!halved_) {
                powers[k] = x[k].re * x[k].re + x[k].im * x[k].im;
                continue;
            }
            const Complex &a = x[k == points ? 0 : k], &b = x[k == 0 ? 0 : points - k];
            const Lanes even_re = a.re + b.re, even_im = a.im - b.im;
            Complex odd = {a.im + b.im, b.re - a.re};
            multiply(odd, split_[k]);
            const Lanes re = 0.5f * (even_re + odd.re), im = 0.5f * (even_im + odd.im);
            powers[k] = re * re + im * im;
        }
        if (power_ != 2) {
            for (size_t k = 0; k < bins_; ++k) {
                for (size_t lane = 0; lane < lanes; ++lane) {
                    const float value = powers[k][lane];
                    powers[k][lane] = power_ == 1 ? std::sqrt(value) : std::pow(value, static_cast<float>(power_ / 2));
                }
            }
        }
        const size_t rows = this->rows();
        for (size_t row = 0; row < rows; ++row) {
            Lanes sum{};
            if (filters_.firsts.empty()) {
                sum = powers[row];
            } else {
                const Lanes* under = powers.get() + filters_.firsts[row];
                const float* weight = filters_.weights.data() + filters_.offsets[row];
                const auto weights = static_cast<size_t>(filters_.offsets[row + 1] - filters_.offsets[row]);
                for (size_t i = 0; i < weights; ++i) sum += weight[i] * under[i];
            }
            float* const to = out + row * row_stride + first * frame_stride;
            if (frame_stride == 1 && count == lanes) {
                std::memcpy(to, &sum, sizeof(sum));
            } else {
                for (size_t lane = 0; lane < count; ++lane) to[lane * frame_stride] = sum[lane];
            }
        }
    }
}

}  // namespace batchplant
