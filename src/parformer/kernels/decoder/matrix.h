// Matrices times a few vectors: fp32 and bf16 rows as torch has them, int8 and int4 in panels.
//
// A panel holds 16 rows side by side, so that no sum goes across a vector and what scales them is a
// vector too. Quantized weights are kept as u = w + 128 (int8) or u = w + 8 (int4), in
//   int8  [panels][inputs / 4][16 rows][4 inputs]
//   int4  [panels][inputs / 8][16 rows][4 bytes], byte j: input j below, input j + 4 above
// which is a copy of blocks/coded.py's codes in another order,
// and the inputs become whole numbers of 16 bits, block by block, as two parts of 8 bits:
//   Σ w x = scale · (256 Σ u high + Σ u low − offset Σ x)
// Where the CPU cannot multiply such bytes, weights become fp32 numbers in registers instead.

#pragma once

#include "vector.h"

enum Kind { FP32, BF16, INT8, INT4 };

struct Matrix {
  int64_t kind, rows, columns;
  const void* weights;
  const float* scales;   // of quantized rows, as many as whole panels have
  const uint8_t* steps;  // int4: [panels][groups of 32][16 rows], what a group has of its row's scale
  const float* bias;
};

constexpr int64_t PANEL = 16, GROUP = 32;
constexpr int64_t BLOCK = 64;  // inputs of an int8 row that share a scale
constexpr int64_t IN_CACHE = 1 << 21;  // weights that stay near between two steps

typedef float panel_f __attribute__((vector_size(64)));
typedef int32_t panel_i __attribute__((vector_size(64)));

INLINE int64_t rounded_up(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

INLINE int64_t block_of(const Matrix& m) { return m.kind == INT8 ? BLOCK : GROUP; }

INLINE bool is_quantized(const Matrix& m) { return m.kind >= INT8; }

// Vectors as a quantized matrix reads them.
struct Inputs {
  int8_t* high;   // [vectors][columns, rounded up]
  int8_t* low;
  float* scales;  // [vectors][blocks]
  int32_t* sums;
  float* plain;   // [vectors][columns, rounded up], where the weights become numbers instead
  int64_t columns, blocks;
};

INLINE void quantize(const float* x, int64_t columns, int64_t block, Inputs& in, int64_t vector) {
  const int64_t padded = in.columns;
  float* plain = in.plain + vector * padded;
  std::memcpy(plain, x, columns * sizeof(float));
  for (int64_t k = columns; k < padded; k++) plain[k] = 0;
#if defined(__AVX512VNNI__)
  for (int64_t b = 0; b < in.blocks; b++) {
    const float* own = plain + b * block;
    vf most{};
    for (int64_t k = 0; k < block; k += W) {
      const vf v = load(own + k);
      most = larger(most, v < 0.0f ? -v : v);
    }
    const float top = _mm512_reduce_max_ps((__m512)most);
    const float inverse = top > 0 ? 32512.0f / top : 0.0f;  // 127 · 256, so that no part overflows
    __m512i total = _mm512_setzero_si512();
    for (int64_t k = 0; k < block; k += W) {
      const __m512i whole = _mm512_cvtps_epi32((__m512)(load(own + k) * inverse));
      total = _mm512_add_epi32(total, whole);
      const __m512i above = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
      const __m512i below = _mm512_sub_epi32(whole, _mm512_slli_epi32(above, 8));
      const int64_t at = vector * padded + b * block + k;
      _mm_storeu_si128((__m128i*)(in.high + at), _mm512_cvtepi32_epi8(above));
      _mm_storeu_si128((__m128i*)(in.low + at), _mm512_cvtepi32_epi8(below));
    }
    in.scales[vector * in.blocks + b] = top / 32512.0f;
    in.sums[vector * in.blocks + b] = _mm512_reduce_add_epi32(total);
  }
#endif
}

INLINE panel_f read_steps(const Matrix& m, int64_t place) {
  const uint8_t* steps = m.steps + place * PANEL;
#if defined(__AVX512F__)
  return (panel_f)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)steps)));
#else
  panel_f found;
  for (int i = 0; i < PANEL; i++) found[i] = steps[i];
  return found;
#endif
}

#if defined(__AVX512VNNI__)
// Sums of some quads of inputs for P panels and T vectors; with U chains of each, so that none waits.
template <int P, int T, int U>
struct Sums {
  __m512i high[P][T][U], low[P][T][U];

  INLINE_MEMBER Sums() {
    for (int p = 0; p < P; p++)
      for (int t = 0; t < T; t++)
        for (int u = 0; u < U; u++) high[p][t][u] = low[p][t][u] = _mm512_setzero_si512();
  }

  INLINE_MEMBER void add(int p, int t, int u, __m512i weights, const Inputs& in, int64_t at) {
    int32_t above, below;
    std::memcpy(&above, in.high + at, 4);
    std::memcpy(&below, in.low + at, 4);
    high[p][t][u] = _mm512_dpbusd_epi32(high[p][t][u], weights, _mm512_set1_epi32(above));
    low[p][t][u] = _mm512_dpbusd_epi32(low[p][t][u], weights, _mm512_set1_epi32(below));
  }

  INLINE_MEMBER panel_f total(int p, int t, int32_t offset) {
    for (int u = 1; u < U; u++) {
      high[p][t][0] = _mm512_add_epi32(high[p][t][0], high[p][t][u]);
      low[p][t][0] = _mm512_add_epi32(low[p][t][0], low[p][t][u]);
    }
    const __m512i both = _mm512_add_epi32(_mm512_slli_epi32(high[p][t][0], 8), low[p][t][0]);
    return (panel_f)_mm512_cvtepi32_ps(_mm512_sub_epi32(both, _mm512_set1_epi32(offset)));
  }
};

template <int P, int T>
INLINE void int8_tile(const Matrix& m, const Inputs& in, int64_t panel, int64_t vector,
                      panel_f out[P][T]) {
  constexpr int U = P * T == 1 ? 4 : 1;
  const int64_t quads = in.columns / 4, each = BLOCK / 4;
  const uint8_t* weights = (const uint8_t*)m.weights + panel * quads * 64;
  for (int p = 0; p < P; p++)
    for (int t = 0; t < T; t++) out[p][t] = panel_f{};
  for (int64_t b = 0; b < in.blocks; b++) {
    Sums<P, T, U> sums;
#pragma GCC unroll 4
    for (int64_t q = b * each; q < (b + 1) * each; q += U)
      for (int u = 0; u < U; u++)
        for (int p = 0; p < P; p++) {
          const __m512i w = _mm512_loadu_si512(weights + (p * quads + q + u) * 64);
          for (int t = 0; t < T; t++)
            sums.add(p, t, u, w, in, (vector + t) * in.columns + (q + u) * 4);
        }
    for (int t = 0; t < T; t++) {
      const int64_t at = (vector + t) * in.blocks + b;
      for (int p = 0; p < P; p++)
        out[p][t] += sums.total(p, t, 128 * in.sums[at]) * in.scales[at];
    }
  }
}

template <int P, int T>
INLINE void int4_tile(const Matrix& m, const Inputs& in, int64_t panel, int64_t vector,
                      panel_f out[P][T]) {
  constexpr int U = P * T == 1 ? 4 : 1;
  const int64_t octets = in.columns / 8, each = GROUP / 8;
  const uint8_t* weights = (const uint8_t*)m.weights + panel * octets * 64;
  const __m512i nibble = _mm512_set1_epi8(15);
  for (int p = 0; p < P; p++)
    for (int t = 0; t < T; t++) out[p][t] = panel_f{};
  for (int64_t b = 0; b < in.blocks; b++) {
    Sums<P, T, U> sums;
#pragma GCC unroll 4
    for (int64_t q = b * each; q < (b + 1) * each; q += U)
      for (int u = 0; u < U; u++)
        for (int p = 0; p < P; p++) {
          const uint8_t* place = weights + (p * octets + q + u) * 64;
          const __m512i both = _mm512_loadu_si512(place);
          if (U > 1) _mm_prefetch((const char*)place + 4096, _MM_HINT_T0);
          const __m512i below = _mm512_and_si512(both, nibble);
          const __m512i above = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
          for (int t = 0; t < T; t++) {
            const int64_t at = (vector + t) * in.columns + (q + u) * 8;
            sums.add(p, t, u, below, in, at);
            sums.add(p, t, u, above, in, at + 4);
          }
        }
    for (int t = 0; t < T; t++) {
      const int64_t at = (vector + t) * in.blocks + b;
      for (int p = 0; p < P; p++) {
        const panel_f steps = read_steps(m, (panel + p) * in.blocks + b) * in.scales[at];
        out[p][t] += sums.total(p, t, 8 * in.sums[at]) * steps;
      }
    }
  }
}
#else
INLINE panel_f widened(panel_i bits) { return __builtin_convertvector(bits, panel_f); }

template <int P, int T>
INLINE void int8_tile(const Matrix& m, const Inputs& in, int64_t panel, int64_t vector,
                      panel_f out[P][T]) {
  const int64_t quads = in.columns / 4;
  for (int p = 0; p < P; p++) {
    const uint8_t* weights = (const uint8_t*)m.weights + (panel + p) * quads * 64;
    for (int t = 0; t < T; t++) out[p][t] = panel_f{};
    for (int64_t q = 0; q < quads; q++) {
      panel_i four;
      std::memcpy(&four, weights + q * 64, 64);
      for (int j = 0; j < 4; j++) {
        const panel_f w = widened((four >> (8 * j) & 255) - 128);
        for (int t = 0; t < T; t++) out[p][t] += w * in.plain[(vector + t) * in.columns + q * 4 + j];
      }
    }
  }
}

template <int P, int T>
INLINE void int4_tile(const Matrix& m, const Inputs& in, int64_t panel, int64_t vector,
                      panel_f out[P][T]) {
  const int64_t octets = in.columns / 8, each = GROUP / 8;
  for (int p = 0; p < P; p++) {
    const uint8_t* weights = (const uint8_t*)m.weights + (panel + p) * octets * 64;
    for (int t = 0; t < T; t++) out[p][t] = panel_f{};
    for (int64_t b = 0; b < in.blocks; b++) {
      panel_f group[T] = {};
      for (int64_t q = b * each; q < (b + 1) * each; q++) {
        panel_i eight;
        std::memcpy(&eight, weights + q * 64, 64);
        for (int j = 0; j < 8; j++) {
          const panel_f w = widened((eight >> (8 * (j & 3) + (j & 4)) & 15) - 8);
          for (int t = 0; t < T; t++)
            group[t] += w * in.plain[(vector + t) * in.columns + q * 8 + j];
        }
      }
      const panel_f scale = read_steps(m, (panel + p) * in.blocks + b);
      for (int t = 0; t < T; t++) out[p][t] += group[t] * scale;
    }
  }
}
#endif

template <int P, int T>
INLINE void quantized_tile(const Matrix& m, const Inputs& in, int64_t panel, int64_t vector,
                           float* y, int64_t step) {
  panel_f out[P][T];
  if (m.kind == INT8)
    int8_tile<P, T>(m, in, panel, vector, out);
  else
    int4_tile<P, T>(m, in, panel, vector, out);
  for (int p = 0; p < P; p++) {
    const int64_t first = (panel + p) * PANEL;
    const int64_t count = m.rows - first < PANEL ? m.rows - first : PANEL;
    for (int t = 0; t < T; t++) {
      panel_f scale;
      std::memcpy(&scale, m.scales + first, sizeof scale);
      const panel_f found = out[p][t] * scale;
      std::memcpy(y + (vector + t) * step + first, &found, count * sizeof(float));
    }
  }
}

// Rows from `first` to `last` (both multiples of 16, or the end) of a quantized matrix.
INLINE void quantized_rows(const Matrix& m, const Inputs& in, int64_t vectors, int64_t first,
                           int64_t last, float* y, int64_t step) {
  int64_t panel = first / PANEL;
  const int64_t end = (last + PANEL - 1) / PANEL;
  // memory is read fastest in one stream; what lies in a cache anyway, in several
  const bool near = m.kind == INT4 && m.rows * m.columns < IN_CACHE;
  while (panel < end) {
    const int64_t many = end - panel >= 4 && (vectors > 1 || near) ? 4 : 1;
    int64_t t = 0;
    for (; t + 2 <= vectors; t += 2)
      many == 4 ? quantized_tile<4, 2>(m, in, panel, t, y, step)
                : quantized_tile<1, 2>(m, in, panel, t, y, step);
    if (t < vectors)
      many == 4 ? quantized_tile<4, 1>(m, in, panel, t, y, step)
                : quantized_tile<1, 1>(m, in, panel, t, y, step);
    panel += many;
  }
}

template <int R, int T, bool NEXT, typename Weight>
__attribute__((noinline)) void plain_tile(const Weight* w, int64_t columns, const float* x, int64_t x_step, float* y,
                       int64_t y_step) {
  vf total[T][R] = {};
  const auto more = [&](int64_t k, auto n) {
    vf in[T];
    for (int t = 0; t < T; t++) in[t] = take(x + t * x_step + k, n);
    for (int r = 0; r < R; r++) {
      // several rows at once are read too slowly without being asked for before
      if (NEXT) __builtin_prefetch(w + (R + r) * columns + k);
      const vf row = take(w + r * columns + k, n);
      for (int t = 0; t < T; t++) total[t][r] += row * in[t];
    }
  };
  along(columns, more);
  for (int t = 0; t < T; t++)
    for (int r = 0; r < R; r += 4) {
      if (R % 4 == 0)
        sums(total[t] + r, y + t * y_step + r);
      else
        y[t * y_step + r] = sum(total[t][r]);
    }
}

constexpr int64_t STREAMED = 192;  // columns from which on a row is worth a sum of its own

#if defined(__AVX512F__)
constexpr int TILE = 6;  // 24 sums fit into 32 registers
#else
constexpr int TILE = 2;
#endif

// Four rows times at most so many vectors.
template <bool NEXT, typename Weight>
INLINE void plain_tiles(const Weight* w, int64_t columns, const float* x, int64_t x_step,
                        int64_t vectors, float* y, int64_t y_step) {
  switch (vectors) {
    case 1: return plain_tile<4, 1, NEXT>(w, columns, x, x_step, y, y_step);
    case 2: return plain_tile<4, 2, NEXT>(w, columns, x, x_step, y, y_step);
#if defined(__AVX512F__)
    case 3: return plain_tile<4, 3, NEXT>(w, columns, x, x_step, y, y_step);
    case 4: return plain_tile<4, 4, NEXT>(w, columns, x, x_step, y, y_step);
    case 5: return plain_tile<4, 5, NEXT>(w, columns, x, x_step, y, y_step);
    case 6: return plain_tile<4, 6, NEXT>(w, columns, x, x_step, y, y_step);
#endif
  }
}

// One row after the other, as memory is read fastest.
template <typename Weight>
INLINE void stream_rows(const Weight* weights, int64_t columns, const float* x, int64_t first,
                        int64_t last, float* y) {
  for (int64_t row = first; row < last; row++) {
    const Weight* w = weights + row * columns;
    vf total[4] = {};
    int64_t k = 0;
    for (; k + 4 * W <= columns; k += 4 * W)
      for (int i = 0; i < 4; i++) total[i] += load(w + k + i * W) * load(x + k + i * W);
    for (; k + W <= columns; k += W) total[0] += load(w + k) * load(x + k);
    if (k < columns) total[1] += load_some(w + k, columns - k) * load_some(x + k, columns - k);
    y[row] = sum((total[0] + total[1]) + (total[2] + total[3]));
  }
}

template <typename Weight>
INLINE void plain_rows(const Weight* weights, int64_t columns, const float* x, int64_t x_step,
                       int64_t vectors, int64_t first, int64_t last, float* y, int64_t y_step) {
  int64_t row = first;
  if (vectors == 1 && columns >= STREAMED) return stream_rows(weights, columns, x, first, last, y);
  for (; row + 4 <= last; row += 4) {
    const Weight* w = weights + row * columns;
    plain_tiles<true>(w, columns, x, x_step, std::min<int64_t>(vectors, TILE), y + row, y_step);
    for (int64_t t = TILE; t < vectors; t += TILE)
      plain_tiles<false>(w, columns, x + t * x_step, x_step, std::min<int64_t>(vectors - t, TILE),
                         y + t * y_step + row, y_step);
  }
  for (; row < last; row++)
    for (int64_t t = 0; t < vectors; t++)
      plain_tile<1, 1, false>(weights + row * columns, columns, x + t * x_step, x_step,
                       y + t * y_step + row, y_step);
}

// One row of a matrix as fp32 numbers, times a scale: how an embedding looks a token up.
INLINE void read_row(const Matrix& m, int64_t row, float scale, float* out) {
  const int64_t panel = row / PANEL, lane = row % PANEL;
  if (m.kind == FP32) {
    const float* own = (const float*)m.weights + row * m.columns;
    for (int64_t k = 0; k < m.columns; k++) out[k] = own[k] * scale;
  } else if (m.kind == BF16) {
    const uint16_t* own = (const uint16_t*)m.weights + row * m.columns;
    along(m.columns, [&](int64_t k, auto n) { put(out + k, take(own + k, n) * scale, n); });
  } else if (m.kind == INT8) {
    const int64_t quads = rounded_up(m.columns, BLOCK) / 4;
    const uint8_t* own = (const uint8_t*)m.weights + (panel * quads * PANEL + lane) * 4;
    const float by = m.scales[row] * scale;
    for (int64_t k = 0; k < m.columns; k++)
      out[k] = float(int(own[k / 4 * 64 + k % 4]) - 128) * by;
  } else {
    const int64_t padded = rounded_up(m.columns, GROUP), octets = padded / 8;
    const uint8_t* own = (const uint8_t*)m.weights + (panel * octets * PANEL + lane) * 4;
    for (int64_t k = 0; k < m.columns; k++) {
      const int byte = own[k / 8 * 64 + k % 4], u = k % 8 < 4 ? byte & 15 : byte >> 4;
      const uint8_t step = m.steps[(panel * (padded / GROUP) + k / GROUP) * PANEL + lane];
      out[k] = float(u - 8) * float(step) * m.scales[row] * scale;
    }
  }
}
