// The recurrence of SRU, forward and backward, each in one pass through memory.
//
// kernels/extension.py compiles this file on first use; kernels/recurrence.py says what it
// computes. A thread takes some neighbouring channels of one text through all of time, and every
// operation is rounded as it is written here (-ffp-contract=off): vectors, remainders and any
// number of threads give the same bits.

#include <cmath>
#include <cstdint>
#include <cstring>

#include <sys/mman.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace {

// Gradients fade on their way through time and end among the numbers below 1e-38, each of which
// costs a processor a hundred times as much as any other. While this lives they are zero.
class WithoutTinyNumbers {
 public:
#if defined(__SSE__)
  WithoutTinyNumbers() : before(_mm_getcsr()) { _mm_setcsr(before | 0x8040); }
  ~WithoutTinyNumbers() { _mm_setcsr(before); }

 private:
  const unsigned before;
#elif defined(__aarch64__)
  WithoutTinyNumbers() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(before | (uint64_t(1) << 24)));
  }
  ~WithoutTinyNumbers() { __asm__ volatile("msr fpcr, %0" : : "r"(before)); }

 private:
  uint64_t before;
#else
  WithoutTinyNumbers() {}
#endif
};

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
inline float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double multiply_add(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else  // in software it would take a hundred times as long
inline float multiply_add(float a, float b, float c) { return a * b + c; }
inline double multiply_add(double a, double b, double c) { return a * b + c; }
#endif

// exp to the last bit or two; written out so that the compiler makes vectors of it.
inline float exponential(float x) {
  x = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
  const float n = __builtin_rintf(x * 1.44269504088896341f);
  const float r = multiply_add(n, 2.12194440e-4f, multiply_add(n, -0.693359375f, x));
  float p = 1.0f / 5040;
  p = multiply_add(p, r, 1.0f / 720);
  p = multiply_add(p, r, 1.0f / 120);
  p = multiply_add(p, r, 1.0f / 24);
  p = multiply_add(p, r, 1.0f / 6);
  p = multiply_add(p, r, 0.5f);
  p = multiply_add(p * r, r, r + 1.0f);
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}
inline double exponential(double x) { return std::exp(x); }

template <class Wide>
inline Wide sigmoid(Wide x) {
  return Wide(1) / (Wide(1) + exponential(-x));
}

struct BFloat16 {
  uint16_t bits;
};

inline float widen(float x) { return x; }
inline double widen(double x) { return x; }
inline float widen(BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

inline void store(float x, float &to) { to = x; }
inline void store(double x, double &to) { to = x; }
inline void store(float x, BFloat16 &to) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t even = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  to.bits = static_cast<uint16_t>(x != x ? 0x7fc0 : even);
}

}  // namespace

// The order of kernels/recurrence.py's class Shape. Steps are in elements.
struct Shape {
  int64_t batch, time, width;
  int64_t u_batch, u_time, u_kind;  // from one text, token, projection to the next
  int64_t x_batch, x_time;
  int64_t dh_batch, dh_time;
  int64_t du_time, dx_time;  // gradients lie without gaps between texts
  int64_t types;             // 0 float, 1 bfloat16, 2 bfloat16 u and float x, 3 double
  int64_t threads;
  double scale;
};

namespace {

// kernels/recurrence.py sets them, and says why.
const int64_t BLOCK = BLOCK_STEPS, CHANNELS = TURN_CHANNELS;
const int64_t LARGE = 1 << 24;  // bytes

// Channels per turn: equal shares, few enough that every thread has some, in whole cache lines.
inline int64_t turn_width(const Shape &s) {
  const int64_t for_threads = (s.threads + s.batch - 1) / s.batch;
  const int64_t for_caches = (s.width + CHANNELS - 1) / CHANNELS;
  const int64_t turns = for_threads > for_caches ? for_threads : for_caches;
  return ((s.width + turns - 1) / turns + 15) / 16 * 16;
}

// Fresh memory is handed out by the system page by page, as it is first written; for much of it
// that takes longer than all else here, unless the pages are large.
inline void ask_for_large_pages(void *place, int64_t bytes) {
  const uintptr_t page = 4096, start = (reinterpret_cast<uintptr_t>(place) + page - 1) / page * page;
  const int64_t inside = reinterpret_cast<uintptr_t>(place) + bytes - start;
  if (bytes >= LARGE) madvise(reinterpret_cast<void *>(start), inside / page * page, MADV_HUGEPAGE);
}

// Four rows: how the forget and the reset gate weigh the cell, and their biases.
template <class Wide>
struct Gates {
  const Wide *forget_weight, *reset_weight, *forget_bias, *reset_bias;
  Gates(const Wide *rows, int64_t width, int64_t from)
      : forget_weight(rows + from),
        reset_weight(rows + width + from),
        forget_bias(rows + 2 * width + from),
        reset_bias(rows + 3 * width + from) {}
};

template <class Wide, class U, class X>
void run_forward(const Shape &s, const U *u, const X *x, const Wide *gates, const Wide *first,
                 const Wide *mask, X *h, Wide *starts, Wide *last) {
  const int64_t turn = turn_width(s), turns = (s.width + turn - 1) / turn;
  const int64_t blocks = (s.time + BLOCK - 1) / BLOCK;
  const Wide scale = static_cast<Wide>(s.scale);
  ask_for_large_pages(h, s.batch * s.time * s.width * sizeof(X));
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(s.threads)
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t part = 0; part < turns; ++part) {
      const int64_t from = part * turn, n = s.width - from < turn ? s.width - from : turn;
      const Gates<Wide> g(gates, s.width, from);
      alignas(64) Wide cell[CHANNELS], open[CHANNELS];
      for (int64_t i = 0; i < n; ++i) {
        cell[i] = first ? first[b * s.width + from + i] : Wide(0);
        open[i] = mask ? mask[b * s.width + from + i] : Wide(1);
      }
      for (int64_t t = 0; t < s.time; ++t) {
        if (t % BLOCK == 0) {
          std::memcpy(starts + (b * blocks + t / BLOCK) * s.width + from, cell, n * sizeof(Wide));
        }
        const U *candidates = u + b * s.u_batch + t * s.u_time + from;
        const U *forgets = candidates + s.u_kind, *resets = forgets + s.u_kind;
        const X *skips = x + b * s.x_batch + t * s.x_time + from;
        X *out = h + (b * s.time + t) * s.width + from;
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
          const Wide before = cell[i], candidate = widen(candidates[i]);
          const Wide forget = sigmoid(
              multiply_add(g.forget_weight[i], before, widen(forgets[i]) + g.forget_bias[i]));
          const Wide reset =
              sigmoid(multiply_add(g.reset_weight[i], before, widen(resets[i]) + g.reset_bias[i]));
          const Wide after = multiply_add(before - candidate, forget, candidate);
          const Wide skip = widen(skips[i]) * scale;
          store(multiply_add(after - skip, reset * open[i], skip), out[i]);
          cell[i] = after;
        }
      }
      std::memcpy(last + b * s.width + from, cell, n * sizeof(Wide));
    }
  }
}

template <class Wide, class U, class X>
void run_backward(const Shape &s, const U *u, const X *x, const Wide *gates, const Wide *mask,
                  const Wide *starts, const X *dh, const Wide *d_last, U *du, X *dx, Wide *d_gates,
                  Wide *d_first) {
  const int64_t turn = turn_width(s), turns = (s.width + turn - 1) / turn;
  const int64_t blocks = (s.time + BLOCK - 1) / BLOCK;
  const Wide scale = static_cast<Wide>(s.scale);
  ask_for_large_pages(du, s.batch * s.time * s.du_time * sizeof(U));
  if (s.dx_time == s.width) ask_for_large_pages(dx, s.batch * s.time * s.width * sizeof(X));
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(s.threads)
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t part = 0; part < turns; ++part) {
      const int64_t from = part * turn, n = s.width - from < turn ? s.width - from : turn;
      const Gates<Wide> g(gates, s.width, from);
      const WithoutTinyNumbers quick;  // in the thread that computes
      alignas(64) Wide cells[BLOCK + 1][CHANNELS], forgets[BLOCK][CHANNELS];
      alignas(64) Wide resets[BLOCK][CHANNELS], open[CHANNELS], d_cell[CHANNELS];
      alignas(64) Wide sums[4][CHANNELS];
      Wide *totals = d_gates + b * 4 * s.width + from;
      for (int64_t i = 0; i < n; ++i) {
        d_cell[i] = d_last ? d_last[b * s.width + from + i] : Wide(0);
        open[i] = mask ? mask[b * s.width + from + i] : Wide(1);
      }
      for (int64_t k = 0; k < 4; ++k) std::memset(totals + k * s.width, 0, n * sizeof(Wide));
      for (int64_t block = blocks - 1; block >= 0; --block) {
        const int64_t start = block * BLOCK;
        const int64_t steps = s.time - start < BLOCK ? s.time - start : BLOCK;
        const U *u_block = u + b * s.u_batch + start * s.u_time + from;
        std::memcpy(cells[0], starts + (b * blocks + block) * s.width + from, n * sizeof(Wide));
        for (int64_t t = 0; t < steps; ++t) {
          const U *candidate = u_block + t * s.u_time;
          const U *to_forget = candidate + s.u_kind, *to_reset = to_forget + s.u_kind;
          const Wide *before = cells[t];
          Wide *after = cells[t + 1], *forget = forgets[t], *reset = resets[t];
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) {
            const Wide c = before[i], fresh = widen(candidate[i]);
            const Wide f =
                sigmoid(multiply_add(g.forget_weight[i], c, widen(to_forget[i]) + g.forget_bias[i]));
            const Wide r =
                sigmoid(multiply_add(g.reset_weight[i], c, widen(to_reset[i]) + g.reset_bias[i]));
            after[i] = multiply_add(c - fresh, f, fresh);
            forget[i] = f;
            reset[i] = r;
          }
        }
        std::memset(sums, 0, sizeof sums);
        for (int64_t t = steps - 1; t >= 0; --t) {
          const U *candidate = u_block + t * s.u_time;
          const X *skips = x + b * s.x_batch + (start + t) * s.x_time + from;
          const X *d_out = dh + b * s.dh_batch + (start + t) * s.dh_time + from;
          const Wide *before = cells[t], *after = cells[t + 1];
          const Wide *forget = forgets[t], *reset = resets[t];
          const int64_t row = b * s.time + start + t;
          U *d_candidate = du + row * s.du_time + from;
          U *d_forget = d_candidate + s.width, *d_reset = d_forget + s.width;
          X *d_skip = dx + row * s.dx_time + from;
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) {
            const Wide d = widen(d_out[i]), c = before[i], f = forget[i], r = reset[i];
            const Wide share = r * open[i], d_share = d * share;
            const Wide d_after = d_cell[i] + d_share;
            const Wide df = d_after * (c - widen(candidate[i])) * (f * (Wide(1) - f));
            const Wide dr =
                d * open[i] * (after[i] - widen(skips[i]) * scale) * (r * (Wide(1) - r));
            store((d - d_share) * scale, d_skip[i]);
            store(d_after * (Wide(1) - f), d_candidate[i]);
            store(df, d_forget[i]);
            store(dr, d_reset[i]);
            d_cell[i] = multiply_add(
                d_after, f, multiply_add(df, g.forget_weight[i], dr * g.reset_weight[i]));
            sums[0][i] = multiply_add(df, c, sums[0][i]);
            sums[1][i] = multiply_add(dr, c, sums[1][i]);
            sums[2][i] += df;
            sums[3][i] += dr;
          }
        }
        for (int64_t k = 0; k < 4; ++k) {
          for (int64_t i = 0; i < n; ++i) totals[k * s.width + i] += sums[k][i];
        }
      }
      std::memcpy(d_first + b * s.width + from, d_cell, n * sizeof(Wide));
    }
  }
}

template <class To>
const To *as(const void *place) {
  return static_cast<const To *>(place);
}
template <class To>
To *as(void *place) {
  return static_cast<To *>(place);
}

template <class Wide, class U, class X>
void forward(const Shape &s, const void *u, const void *x, const void *gates, const void *first,
             const void *mask, void *h, void *starts, void *last) {
  run_forward(s, as<U>(u), as<X>(x), as<Wide>(gates), as<Wide>(first), as<Wide>(mask), as<X>(h),
              as<Wide>(starts), as<Wide>(last));
}

template <class Wide, class U, class X>
void backward(const Shape &s, const void *u, const void *x, const void *gates, const void *mask,
              const void *starts, const void *dh, const void *d_last, void *du, void *dx,
              void *d_gates, void *d_first) {
  run_backward(s, as<U>(u), as<X>(x), as<Wide>(gates), as<Wide>(mask), as<Wide>(starts), as<X>(dh),
               as<Wide>(d_last), as<U>(du), as<X>(dx), as<Wide>(d_gates), as<Wide>(d_first));
}

}  // namespace

extern "C" {

void recurrence_forward(const Shape *shape, const void *u, const void *x, const void *gates,
                        const void *first, const void *mask, void *h, void *starts, void *last) {
  const auto run = shape->types == 0   ? forward<float, float, float>
                   : shape->types == 1 ? forward<float, BFloat16, BFloat16>
                   : shape->types == 2 ? forward<float, BFloat16, float>
                                       : forward<double, double, double>;
  run(*shape, u, x, gates, first, mask, h, starts, last);
}

void recurrence_backward(const Shape *shape, const void *u, const void *x, const void *gates,
                         const void *mask, const void *starts, const void *dh, const void *d_last,
                         void *du, void *dx, void *d_gates, void *d_first) {
  const auto run = shape->types == 0   ? backward<float, float, float>
                   : shape->types == 1 ? backward<float, BFloat16, BFloat16>
                   : shape->types == 2 ? backward<float, BFloat16, float>
                                       : backward<double, double, double>;
  run(*shape, u, x, gates, mask, starts, dh, d_last, du, dx, d_gates, d_first);
}

}  // extern "C"
