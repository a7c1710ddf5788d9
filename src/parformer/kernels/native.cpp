// Attention and GELU for training on a CPU, each in one pass through the cache.
//
// kernels/native.py compiles this file when a training asks for it; kernels/attention.py and
// kernels/activations.py say what the functions compute. Every sum has one order, whatever the number
// of threads: a thread takes whole heads, and what several heads add up to is left to torch.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "halves.h"

namespace {

// The multiplication that torch brings along, in Fortran's clothes: columns first.
using Gemm = void (*)(const char *, const char *, const int *, const int *, const int *,
                      const float *, const float *, const int *, const float *, const int *,
                      const float *, float *, const int *);

// Where attention is sharp, most shares and their gradients are below 1e-38, and each such number
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

// exp to the last bit or two; written out so that the compiler makes vectors of it.
inline float exponential(float x) {
  x = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
  const float n = __builtin_rintf(x * 1.44269504088896341f);
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}

// Rows first, by torch's multiplication in fp32, or in bf16 by one's own where `halves` is given.
struct Multiply {
  Gemm gemm;
  Halves *halves;

  // c (m × n) = alpha · a (m × k) bᵀ (n × k) + beta · c.
  void outer(int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
             float beta, float *c, int ldc) const {
    if (halves) {
      halves->multiply(m, n, k, alpha, a, lda, false, b, ldb, true, beta, c, ldc);
    } else {
      gemm("T", "N", &n, &m, &k, &alpha, b, &ldb, a, &lda, &beta, c, &ldc);
    }
  }
  // c (m × n) = alpha · a (m × k) b (k × n) + beta · c.
  void plain(int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
             float beta, float *c, int ldc) const {
    if (halves) {
      halves->multiply(m, n, k, alpha, a, lda, false, b, ldb, false, beta, c, ldc);
    } else {
      gemm("N", "N", &n, &m, &k, &alpha, b, &ldb, a, &lda, &beta, c, &ldc);
    }
  }
  // c (m × n) = alpha · aᵀ (k × m) b (k × n) + beta · c.
  void inner(int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
             float beta, float *c, int ldc) const {
    if (halves) {
      halves->multiply(m, n, k, alpha, a, lda, true, b, ldb, false, beta, c, ldc);
    } else {
      gemm("N", "T", &n, &m, &k, &alpha, b, &ldb, a, &lda, &beta, c, &ldc);
    }
  }
};

}  // namespace

extern "C" {

// The order of kernels/attention.py's class Shape.
struct Shape {
  int64_t batch, time, keys, heads, groups, width;
  int64_t q_batch, q_row, kv_batch, kv_row;  // steps from one text, one token to the next
  int64_t causal, limit;                     // limit: keys that a query sees at most
  int64_t threads;
  int64_t half;  // whether products may round to bf16, as all that is given was rounded
};

// A product in bf16 by itself, for who wants to try it; whether there is such a thing here.
int64_t multiply_halves(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_turned,
                        const float *b, int64_t b_turned, float *c, int64_t ldc) {
  if (Halves::possible) {
    Halves().multiply(m, n, k, 2, a, a_turned ? m : k, a_turned, b, b_turned ? k : n, b_turned, -1,
                      c, ldc);
  }
  return Halves::possible;
}

static const int64_t BLOCK = 64;  // queries at a time: their scores stay in the first caches

static inline int64_t first_key(const Shape &s, int64_t query) {
  const int64_t last = s.keys - s.time + query;
  return s.causal && last + 1 > s.limit ? last + 1 - s.limit : 0;
}

static inline int64_t end_key(const Shape &s, int64_t query) {
  return s.causal ? s.keys - s.time + query + 1 : s.keys;
}

// `r` (heads, keys, width), `content` and `position` (heads, width) are null without relative
// positions; `present` (batch, keys) is null without padding.
void attention_forward(Gemm gemm, const Shape *shape, const float *q, const float *k,
                       const float *v, const float *r, const float *content,
                       const float *position, const uint8_t *present, float *y, float *weights) {
  const Shape s = *shape;
  const int64_t width = s.width, repeats = s.heads / s.groups;
  const float scale = 1.0f / std::sqrt(static_cast<float>(width));
#pragma omp parallel num_threads(s.threads)
  {
    const WithoutTinyNumbers quick;  // in the thread that computes
    Halves halves;
    const Multiply multiply{gemm, s.half && Halves::possible ? &halves : nullptr};
    std::vector<float> shifted(r ? BLOCK * s.keys : 0), biased(r ? 2 * BLOCK * width : 0);
#pragma omp for collapse(2) schedule(static)
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t h = 0; h < s.heads; ++h) {
        const float *keys = k + b * s.kv_batch + h / repeats * width;
        const float *values = v + b * s.kv_batch + h / repeats * width;
        for (int64_t start = 0; start < s.time; start += BLOCK) {
          const int64_t end = start + BLOCK < s.time ? start + BLOCK : s.time, m = end - start;
          const int64_t seen = end_key(s, end - 1);
          const float *queries = q + b * s.q_batch + start * s.q_row + h * width;
          int64_t row = s.q_row;
          float *scores = weights + ((b * s.heads + h) * s.time + start) * s.keys;
          if (r) {
            float *with_content = biased.data(), *with_position = with_content + m * width;
            for (int64_t i = 0; i < m; ++i) {
              for (int64_t c = 0; c < width; ++c) {
                with_content[i * width + c] = queries[i * row + c] + content[h * width + c];
                with_position[i * width + c] = queries[i * row + c] + position[h * width + c];
              }
            }
            const float *distances = r + (h * s.keys + s.time - end) * width;
            multiply.outer(m, seen, width, scale, with_position, width, distances, width, 0,
                           shifted.data(), seen);
            queries = with_content;
            row = width;
          }
          multiply.outer(m, seen, width, scale, queries, row, keys, s.kv_row, 0, scores, s.keys);
          for (int64_t i = 0; i < m; ++i) {
            float *line = scores + i * s.keys;
            const int64_t from = first_key(s, start + i), to = end_key(s, start + i);
            if (r) {
              const float *moved = shifted.data() + i * seen + (m - 1 - i);
#pragma omp simd
              for (int64_t j = from; j < to; ++j) line[j] += moved[j];
            }
            if (present) {
              for (int64_t j = from; j < to; ++j) {
                if (!present[b * s.keys + j]) line[j] = -INFINITY;
              }
            }
            float most = -INFINITY, sum = 0;
#pragma omp simd reduction(max : most)
            for (int64_t j = from; j < to; ++j) most = line[j] > most ? line[j] : most;
#pragma omp simd reduction(+ : sum)
            for (int64_t j = from; j < to; ++j) {
              // what is hidden counts nothing, not exp(-87)
              const float e = line[j] == -INFINITY ? 0.0f : exponential(line[j] - most);
              line[j] = e;
              sum += e;
            }
            const float share = 1.0f / sum;
#pragma omp simd
            for (int64_t j = from; j < to; ++j) line[j] *= share;
            std::memset(line, 0, from * sizeof(float));
            std::memset(line + to, 0, (seen - to) * sizeof(float));
          }
          float *answers = y + (b * s.time + start) * s.heads * width + h * width;
          multiply.plain(m, width, seen, 1, scores, s.keys, values, s.kv_row, 0, answers,
                         s.heads * width);
        }
      }
    }
  }
}

// Gradients of q, k and v lie as q, k and v do. Those of `r` (batch, heads, keys, width), `content`
// and `position` (batch, heads, width) are given for each text, and start as zeros.
void attention_backward(Gemm gemm, const Shape *shape, const float *q, const float *k,
                        const float *v, const float *r, const float *content,
                        const float *position, const float *weights, const float *dy, float *dq,
                        float *dk, float *dv, float *dr, float *d_content, float *d_position) {
  const Shape s = *shape;
  const int64_t width = s.width, repeats = s.heads / s.groups;
  const float scale = 1.0f / std::sqrt(static_cast<float>(width));
#pragma omp parallel num_threads(s.threads)
  {
    const WithoutTinyNumbers quick;  // in the thread that computes
    Halves halves;
    const Multiply multiply{gemm, s.half && Halves::possible ? &halves : nullptr};
    std::vector<float> space(BLOCK * s.keys), shifted(r ? BLOCK * s.keys : 0);
    std::vector<float> biased(r ? 4 * BLOCK * width : 0);
#pragma omp for collapse(2) schedule(static)
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t g = 0; g < s.groups; ++g) {
        const float *keys = k + b * s.kv_batch + g * width;
        const float *values = v + b * s.kv_batch + g * width;
        float *d_keys = dk + b * s.kv_batch + g * width;
        float *d_values = dv + b * s.kv_batch + g * width;
        float old = 0;  // the last block sees every key, so it comes first and overwrites
        for (int64_t h = g * repeats; h < (g + 1) * repeats; ++h) {
          for (int64_t end = s.time; end > 0;) {
            const int64_t start = (end - 1) / BLOCK * BLOCK, m = end - start;
            const int64_t seen = end_key(s, end - 1);
            const float *queries = q + b * s.q_batch + start * s.q_row + h * width;
            float *d_queries = dq + b * s.q_batch + start * s.q_row + h * width;
            const float *shares = weights + ((b * s.heads + h) * s.time + start) * s.keys;
            const int64_t y_row = s.heads * width;
            const float *d_answers = dy + (b * s.time + start) * y_row + h * width;
            float *d_scores = space.data();
            multiply.outer(m, seen, width, 1, d_answers, y_row, values, s.kv_row, 0, d_scores,
                           seen);
            for (int64_t i = 0; i < m; ++i) {
              float *line = d_scores + i * seen, mean = 0;
              const float *share = shares + i * s.keys;
#pragma omp simd reduction(+ : mean)
              for (int64_t j = 0; j < seen; ++j) mean += line[j] * share[j];
#pragma omp simd
              for (int64_t j = 0; j < seen; ++j) line[j] = (line[j] - mean) * share[j];
            }
            multiply.inner(seen, width, m, 1, shares, s.keys, d_answers, y_row, old, d_values,
                           s.kv_row);
            if (!r) {
              multiply.plain(m, width, seen, scale, d_scores, seen, keys, s.kv_row, 0, d_queries,
                             s.q_row);
              multiply.inner(seen, width, m, scale, d_scores, seen, queries, s.q_row, old, d_keys,
                             s.kv_row);
            } else {
              float *with_content = biased.data(), *with_position = with_content + m * width;
              float *d_first = with_position + m * width, *d_second = d_first + m * width;
              for (int64_t i = 0; i < m; ++i) {
                for (int64_t c = 0; c < width; ++c) {
                  const float value = queries[i * s.q_row + c];
                  with_content[i * width + c] = value + content[h * width + c];
                  with_position[i * width + c] = value + position[h * width + c];
                }
                float *moved = shifted.data() + i * seen;
                const int64_t by = m - 1 - i;
                std::memset(moved, 0, by * sizeof(float));
                std::memcpy(moved + by, d_scores + i * seen, (seen - by) * sizeof(float));
              }
              const int64_t nearest = (h * s.keys + s.time - end) * width;
              float *d_distances = dr + b * s.heads * s.keys * width + nearest;
              multiply.plain(m, width, seen, scale, d_scores, seen, keys, s.kv_row, 0, d_first,
                             width);
              multiply.inner(seen, width, m, scale, d_scores, seen, with_content, width, old,
                             d_keys, s.kv_row);
              multiply.plain(m, width, seen, scale, shifted.data(), seen, r + nearest, width, 0,
                             d_second, width);
              multiply.inner(seen, width, m, scale, shifted.data(), seen, with_position, width, 1,
                             d_distances, width);
              float *to_content = d_content + (b * s.heads + h) * width;
              float *to_position = d_position + (b * s.heads + h) * width;
              for (int64_t i = 0; i < m; ++i) {
                for (int64_t c = 0; c < width; ++c) {
                  const float one = d_first[i * width + c], two = d_second[i * width + c];
                  to_content[c] += one;
                  to_position[c] += two;
                  d_queries[i * s.q_row + c] = one + two;
                }
              }
            }
            old = 1;
            end = start;
          }
        }
      }
    }
  }
}

// GELU by the tanh formula, which is v · sigmoid(v (a + b v²)), of v = x + bias, and its slope.
void gelu_forward(const float *x, const float *bias, float *y, float *slope, int64_t rows,
                  int64_t columns, int64_t threads) {
  const float a = 1.5957691216057308f, b = 0.07135481282553484f;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row * columns;
#pragma omp simd
    for (int64_t i = 0; i < columns; ++i) {
      const float value = x[at + i] + bias[i], square = value * value;
      const float gate = 1.0f / (1.0f + exponential(-value * (a + b * square)));
      y[at + i] = value * gate;
      slope[at + i] = gate + value * gate * (1.0f - gate) * (a + 3.0f * b * square);
    }
  }
}

// dx = dy · slope, and what each column of it adds up to in every `chunk` rows: the bias' gradient,
// in an order that does not depend on threads.
void gelu_backward(const float *dy, const float *slope, float *dx, float *sums, int64_t rows,
                   int64_t columns, int64_t chunk, int64_t threads) {
  const int64_t chunks = (rows + chunk - 1) / chunk;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t c = 0; c < chunks; ++c) {
    float *sum = sums + c * columns;
    std::memset(sum, 0, columns * sizeof(float));
    const int64_t end = (c + 1) * chunk < rows ? (c + 1) * chunk : rows;
    for (int64_t row = c * chunk; row < end; ++row) {
      const int64_t at = row * columns;
#pragma omp simd
      for (int64_t i = 0; i < columns; ++i) {
        const float value = dy[at + i] * slope[at + i];
        dx[at + i] = value;
        sum[i] += value;
      }
    }
  }
}

// Of every row of logits: the log of the sum of exponentials, and by how much it exceeds the target;
// with smoothing a share of the loss is by how much it exceeds their mean. Rows without a target
// lose nothing.
void cross_entropy_forward(const float *logits, const int64_t *targets, const float *smoothing,
                           float *losses, float *totals, int64_t rows, int64_t columns,
                           int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    if (targets[row] < 0) {
      totals[row] = losses[row] = 0;
      continue;
    }
    const float *line = logits + row * columns;
    float largest = line[0], sum = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < columns; ++i) largest = line[i] > largest ? line[i] : largest;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < columns; ++i) sum += exponential(line[i] - largest);
    totals[row] = largest + std::log(sum);
    losses[row] = totals[row] - line[targets[row]];
    if (*smoothing > 0) {
      float above = 0;  // the target's logit, of the others: few digits are lost
#pragma omp simd reduction(+ : above)
      for (int64_t i = 0; i < columns; ++i) above += line[targets[row]] - line[i];
      losses[row] += *smoothing * above / columns;
    }
  }
}

// (softmax − what was wanted) times the gradient of the row's loss.
void cross_entropy_backward(const float *logits, const int64_t *targets, const float *smoothing,
                            const float *totals, const float *d_losses, float *d_logits,
                            int64_t rows, int64_t columns, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    const float *line = logits + row * columns;
    float *d_line = d_logits + row * columns;
    if (targets[row] < 0) {
      std::memset(d_line, 0, columns * sizeof(float));
      continue;
    }
    const float total = totals[row], scale = d_losses[row], even = *smoothing / columns;
#pragma omp simd
    for (int64_t i = 0; i < columns; ++i) d_line[i] = (exponential(line[i] - total) - even) * scale;
    d_line[targets[row]] -= (1 - *smoothing) * scale;
  }
}

}  // extern "C"
