// Convolution of each channel over time with a kernel per head, forward and backward.
//
// kernels/extension.py compiles this file on first use; kernels/convolution.py says what it
// computes. A thread takes one head of one text through all of time: what it reads of a few
// neighbouring places fits its cache, nothing is laid out anew, and any number of threads gives
// the same bits.

#include <algorithm>
#include <cstdint>

namespace {

struct Shape {
  int64_t batch, time, places, width, heads, taps;
  int64_t first;                 // the place of tap 0 for the output at time 0; below 0 before the text
  int64_t u_batch, u_place;      // distances between numbers of the input, channels lie side by side
  int64_t w_batch, w_time;       // 0 where all texts or all times share their kernels
  int64_t dy_batch, dy_time;
  int64_t kind;                  // 0 float, 1 double
  int64_t threads;
};

// A stretch of channels whose sums stay in registers: sum over taps of weight[tap] * rows[tap].
template <int Channels, typename T>
inline void mix(const T* rows, int64_t row, const T* weight, int64_t step, int64_t taps, T* out) {
  T sum[Channels] = {};
  for (int64_t j = 0; j < taps; ++j) {
    const T by = weight[j * step];
    const T* from = rows + j * row;
#pragma omp simd
    for (int c = 0; c < Channels; ++c) sum[c] += by * from[c];
  }
#pragma omp simd
  for (int c = 0; c < Channels; ++c) out[c] = sum[c];
}

template <typename T>
inline void mix_all(const T* rows, int64_t row, const T* weight, int64_t step, int64_t taps,
                    int64_t channels, T* out) {
  int64_t c = 0;
  for (; c + 32 <= channels; c += 32) mix<32>(rows + c, row, weight, step, taps, out + c);
  for (; c + 16 <= channels; c += 16) mix<16>(rows + c, row, weight, step, taps, out + c);
  for (; c + 8 <= channels; c += 8) mix<8>(rows + c, row, weight, step, taps, out + c);
  for (; c + 4 <= channels; c += 4) mix<4>(rows + c, row, weight, step, taps, out + c);
  for (; c < channels; ++c) mix<1>(rows + c, row, weight, step, taps, out + c);
}

template <typename T>
inline T dot(const T* one, const T* other, int64_t count) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < count; ++c) sum += one[c] * other[c];
  return sum;
}

template <typename T>
void forward(const Shape& s, const T* u, const T* w, T* y) {
  const int64_t channels = s.width / s.heads;
#pragma omp parallel for collapse(2) num_threads(s.threads) schedule(static)
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const T* u_h = u + b * s.u_batch + h * channels;
      const T* w_h = w + b * s.w_batch + h * s.taps;
      T* y_h = y + b * s.time * s.width + h * channels;
      for (int64_t t = 0; t < s.time; ++t) {
        const int64_t start = t + s.first;
        const int64_t low = std::max<int64_t>(0, -start);
        const int64_t high = std::max(low, std::min(s.taps, s.places - start));
        mix_all(u_h + (start + low) * s.u_place, s.u_place, w_h + t * s.w_time + low, 1, high - low,
                channels, y_h + t * s.width);
      }
    }
  }
}

template <typename T>
void backward(const Shape& s, const T* u, const T* w, const T* dy, T* du, T* dw) {
  const int64_t channels = s.width / s.heads;
  const bool own = s.w_time != 0;  // kernels of each time, or one for all times of a text
#pragma omp parallel for collapse(2) num_threads(s.threads) schedule(static)
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const T* u_h = u + b * s.u_batch + h * channels;
      const T* w_h = w + b * s.w_batch + h * s.taps;
      const T* dy_h = dy + b * s.dy_batch + h * channels;
      T* du_h = du + b * s.places * s.width + h * channels;
      T* dw_h = dw + (own ? b * s.time * s.heads : b * s.heads) * s.taps + h * s.taps;
      for (int64_t p = 0; p < s.places; ++p) {
        // the outputs that saw this place: at time t by tap p - t - first
        const int64_t last = p - s.first;
        const int64_t low = std::max<int64_t>(0, last - s.taps + 1);
        const int64_t high = std::max(low, std::min(s.time, last + 1));
        mix_all(dy_h + low * s.dy_time, s.dy_time, w_h + low * s.w_time + (last - low),
                s.w_time - 1, high - low, channels, du_h + p * s.width);
      }
      for (int64_t t = 0; t < s.time; ++t) {
        const int64_t start = t + s.first;
        const int64_t low = std::max<int64_t>(0, -start);
        const int64_t high = std::max(low, std::min(s.taps, s.places - start));
        T* to = dw_h + (own ? t * s.heads * s.taps : 0);
        for (int64_t j = low; j < high; ++j)
          to[j] += dot(u_h + (start + j) * s.u_place, dy_h + t * s.dy_time, channels);
      }
    }
  }
}

}  // namespace

extern "C" {

void convolution_forward(const Shape* s, const void* u, const void* w, void* y) {
  if (s->kind == 0)
    forward(*s, static_cast<const float*>(u), static_cast<const float*>(w), static_cast<float*>(y));
  else
    forward(*s, static_cast<const double*>(u), static_cast<const double*>(w),
            static_cast<double*>(y));
}

// dw must begin as zeros.
void convolution_backward(const Shape* s, const void* u, const void* w, const void* dy, void* du,
                          void* dw) {
  if (s->kind == 0)
    backward(*s, static_cast<const float*>(u), static_cast<const float*>(w),
             static_cast<const float*>(dy), static_cast<float*>(du), static_cast<float*>(dw));
  else
    backward(*s, static_cast<const double*>(u), static_cast<const double*>(w),
             static_cast<const double*>(dy), static_cast<double*>(du), static_cast<double*>(dw));
}
}
