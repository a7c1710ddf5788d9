// Products of small matrices in bf16, summed in fp32, where the processor has that as one instruction.
//
// Both sides are given in fp32. They are rounded and laid out in pairs of neighbours along the sum,
// which is what the instruction takes, and multiplied in tiles that stay in registers. Elsewhere
// `Halves::possible` is false, and whoever has fp32 products takes those.

#pragma once

#include <cstdint>
#include <vector>

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#include <immintrin.h>

namespace halves {

constexpr int64_t LANES = 16;

inline int64_t padded(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

inline __mmask16 first(int64_t count) {
  return count >= LANES ? 0xffff : static_cast<__mmask16>((1u << (count > 0 ? count : 0)) - 1);
}

// Sixteen pairs of one row: numbers 0 and 1, 2 and 3, …; nought past its end.
inline __m512i along(const float *row, int64_t count) {
  const __m512 low = _mm512_maskz_loadu_ps(first(count), row);
  const __m512 high = _mm512_maskz_loadu_ps(first(count - LANES), row + LANES);
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

// Sixteen pairs of two rows, one number of each; the second may be missing.
inline __m512i across(const float *row, const float *next, int64_t count) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512 low = _mm512_maskz_loadu_ps(first(count), row);
  const __m512 high = next ? _mm512_maskz_loadu_ps(first(count), next) : _mm512_setzero_ps();
  return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

// Sixteen rows of sixteen become columns.
inline void turn(__m512i (&rows)[16]) {
  __m512i half[16];
  for (int i = 0; i < 16; i += 2) {
    half[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    half[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(half[i], half[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(half[i], half[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(half[i + 1], half[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(half[i + 1], half[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    half[i] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88);
    half[i + 4] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xdd);
    half[i + 8] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0x88);
    half[i + 12] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {
    rows[i] = _mm512_shuffle_i32x4(half[i], half[i + 8], 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(half[i], half[i + 8], 0xdd);
  }
}

// Where the pairs of the left side lie: steps from row to row, and from pair to pair.
struct Left {
  const uint32_t *at;
  int64_t row, pair;
};

struct Answer {
  float alpha, beta;
  float *at;
  int64_t row, columns;
};

// `Rows` rows times 16 · `Columns` columns of the answer.
template <int Rows, int Columns>
void tile(Left left, const uint32_t *right, int64_t step, int64_t pairs, Answer answer) {
  __m512 sums[Rows][Columns];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < Columns; ++c) sums[r][c] = _mm512_setzero_ps();
  }
  for (int64_t p = 0; p < pairs; ++p) {
    __m512i here[Columns];
#pragma GCC unroll 4
    for (int c = 0; c < Columns; ++c) {
      here[c] = _mm512_loadu_si512(right + p * step + c * LANES);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const uint32_t pair = left.at[r * left.row + p * left.pair];
      const __m512i one = _mm512_set1_epi32(static_cast<int>(pair));
#pragma GCC unroll 4
      for (int c = 0; c < Columns; ++c) {
        sums[r][c] = _mm512_dpbf16_ps(sums[r][c], (__m512bh)one, (__m512bh)here[c]);
      }
    }
  }
  const __m512 alpha = _mm512_set1_ps(answer.alpha), beta = _mm512_set1_ps(answer.beta);
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < Columns; ++c) {
      float *place = answer.at + r * answer.row + c * LANES;
      const __mmask16 mask = first(answer.columns - c * LANES);
      __m512 value = _mm512_mul_ps(alpha, sums[r][c]);
      if (answer.beta != 0) {  // what was there may be anything otherwise
        value = _mm512_fmadd_ps(beta, _mm512_maskz_loadu_ps(mask, place), value);
      }
      _mm512_mask_storeu_ps(place, mask, value);
    }
  }
}

template <int Rows, int Columns>
void rows(Left left, const uint32_t *right, int64_t step, int64_t pairs, int64_t m, Answer answer) {
  int64_t i = 0;
  for (; i + Rows <= m; i += Rows) {
    tile<Rows, Columns>(left, right, step, pairs, answer);
    left.at += Rows * left.row;
    answer.at += Rows * answer.row;
  }
  for (; i < m; ++i) {
    tile<1, Columns>(left, right, step, pairs, answer);
    left.at += left.row;
    answer.at += answer.row;
  }
}

}  // namespace halves

// One thread's own: it keeps the room for pairs.
class Halves {
 public:
  static constexpr bool possible = true;

  // c (m × n) = alpha · a (m × k) b (k × n) + beta · c; a side that is `turned` is given with its
  // rows and columns exchanged.
  void multiply(int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                bool a_turned, const float *b, int64_t ldb, bool b_turned, float beta, float *c,
                int64_t ldc) {
    const int64_t pairs = (k + 1) / 2, step = halves::padded(n);
    const halves::Left left = lay_left(m, k, a, lda, a_turned);
    lay_right(n, k, b, ldb, b_turned, step);
    const uint32_t *there = right.data();
    int64_t j = 0;
    while (j < n) {
      const halves::Answer answer{alpha, beta, c + j, ldc, n - j};
      const int64_t wide = (step - j) / halves::LANES;
      if (wide >= 4) {
        halves::rows<4, 4>(left, there + j, step, pairs, m, answer);
        j += 4 * halves::LANES;
      } else if (wide >= 2) {
        halves::rows<8, 2>(left, there + j, step, pairs, m, answer);
        j += 2 * halves::LANES;
      } else {
        halves::rows<8, 1>(left, there + j, step, pairs, m, answer);
        j += halves::LANES;
      }
    }
  }

 private:
  std::vector<uint32_t> left, right;

  static uint32_t *room(std::vector<uint32_t> &place, int64_t count) {
    if (static_cast<int64_t>(place.size()) < count) place.resize(count);
    return place.data();
  }

  halves::Left lay_left(int64_t m, int64_t k, const float *a, int64_t lda, bool turned) {
    const int64_t pairs = (k + 1) / 2, step = halves::padded(turned ? m : pairs);
    uint32_t *at = room(left, (turned ? pairs : m) * step);
    if (!turned) {
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t p = 0; p < pairs; p += halves::LANES) {
          const __m512i found = halves::along(a + i * lda + 2 * p, k - 2 * p);
          _mm512_storeu_si512(at + i * step + p, found);
        }
      }
      return {at, step, 1};
    }
    lay_across(at, step, m, k, a, lda);
    return {at, 1, step};
  }

  void lay_right(int64_t n, int64_t k, const float *b, int64_t ldb, bool turned, int64_t step) {
    const int64_t pairs = (k + 1) / 2;
    uint32_t *at = room(right, halves::padded(pairs) * step);
    if (!turned) {
      lay_across(at, step, n, k, b, ldb);
      return;
    }
    for (int64_t j = 0; j < n; j += halves::LANES) {
      for (int64_t p = 0; p < pairs; p += halves::LANES) {
        __m512i lines[16];
        for (int64_t i = 0; i < 16; ++i) {
          lines[i] = j + i < n ? halves::along(b + (j + i) * ldb + 2 * p, k - 2 * p)
                               : _mm512_setzero_si512();
        }
        halves::turn(lines);
        for (int64_t i = 0; i < 16; ++i) _mm512_storeu_si512(at + (p + i) * step + j, lines[i]);
      }
    }
  }

  // The pairs of a side whose rows are what is summed over.
  static void lay_across(uint32_t *at, int64_t step, int64_t columns, int64_t k, const float *x,
                         int64_t ldx) {
    for (int64_t p = 0; 2 * p < k; ++p) {
      const float *row = x + 2 * p * ldx, *next = 2 * p + 1 < k ? row + ldx : nullptr;
      for (int64_t j = 0; j < columns; j += halves::LANES) {
        const __m512i found = halves::across(row + j, next ? next + j : nullptr, columns - j);
        _mm512_storeu_si512(at + p * step + j, found);
      }
    }
  }
};

#else

class Halves {
 public:
  static constexpr bool possible = false;
  void multiply(int64_t, int64_t, int64_t, float, const float *, int64_t, bool, const float *,
                int64_t, bool, float, float *, int64_t) {}
};

#endif
