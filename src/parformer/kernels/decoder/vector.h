// Vectors as wide as this CPU has them, and the few functions of numbers that a step needs.
//
// Everything is written with the compiler's own vectors, so one source serves AVX-512, AVX2 and
// any other machine; intrinsics stand only where the compiler would not find the instruction.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));

#define INLINE static inline __attribute__((always_inline))
#define INLINE_MEMBER inline __attribute__((always_inline))

INLINE vf all(float x) { return x - vf{}; }

INLINE vf load(const float* p) {
  vf v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

INLINE void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }

// The first `count` numbers, and zeros.
INLINE vf load_some(const float* p, int64_t count) {
#if defined(__AVX512F__)
  return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), p);
#else
  vf v{};
  for (int64_t i = 0; i < count; i++) v[i] = p[i];
  return v;
#endif
}

INLINE void store_some(float* p, vf v, int64_t count) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, (__mmask16)((1u << count) - 1), (__m512)v);
#else
  for (int64_t i = 0; i < count; i++) p[i] = v[i];
#endif
}

// bf16 numbers are the upper halves of fp32 ones.
INLINE vf load(const uint16_t* p) {
#if defined(__AVX512F__)
  const __m256i half = _mm256_loadu_si256((const __m256i*)p);
  return (vf)_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
#elif defined(__AVX2__)
  const __m128i half = _mm_loadu_si128((const __m128i*)p);
  return (vf)_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
#else
  vi v;
  for (int i = 0; i < W; i++) v[i] = int32_t(uint32_t(p[i]) << 16);
  vf f;
  std::memcpy(&f, &v, sizeof f);
  return f;
#endif
}

INLINE vf load_some(const uint16_t* p, int64_t count) {
  uint16_t whole[W] = {};
  for (int64_t i = 0; i < count; i++) whole[i] = p[i];
  return load(whole);
}

INLINE float sum(vf v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float total = 0;
  for (int i = 0; i < W; i++) total += v[i];
  return total;
#endif
}

// The sums of four vectors.
INLINE void sums(const vf v[4], float out[4]) {
#if defined(__AVX512F__)
  const __m512 a = (__m512)v[0], b = (__m512)v[1], c = (__m512)v[2], d = (__m512)v[3];
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512 all = _mm512_add_ps(
      _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))),
      _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))));
  const __m256 half = _mm256_add_ps(
      _mm512_castps512_ps256(all),
      _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(all), 1)));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
#elif defined(__AVX__)
  const __m256 ab = _mm256_hadd_ps((__m256)v[0], (__m256)v[1]);
  const __m256 cd = _mm256_hadd_ps((__m256)v[2], (__m256)v[3]);
  const __m256 all = _mm256_hadd_ps(ab, cd);
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
#else
  for (int i = 0; i < 4; i++) out[i] = sum(v[i]);
#endif
}

INLINE vf larger(vf a, vf b) { return a > b ? a : b; }

INLINE float largest(vf v) {
  float most = v[0];
  for (int i = 1; i < W; i++) most = v[i] > most ? v[i] : most;
  return most;
}

// exp to the last bit or two.
INLINE vf exponential(vf x) {
  x = x < -87.0f ? all(-87.0f) : x;
  x = x > 88.0f ? all(88.0f) : x;
  const vf shifted = x * 1.44269504088896341f + 12582912.0f;  // the sum's last bits are the whole part
  const vf n = shifted - 12582912.0f;
  const vf r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  vf p = all(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const vi power = (__builtin_convertvector(n, vi) + 127) << 23;
  return p * (vf)power;
}

INLINE vf sigmoid(vf x) { return 1.0f / (1.0f + exponential(-x)); }

INLINE vf tanh_of(vf x) { return 1.0f - 2.0f / (exponential(x + x) + 1.0f); }

// Abramowitz and Stegun 7.1.26: within 1.5e-7.
INLINE vf erf_of(vf x) {
  const vf size = x < 0.0f ? -x : x;
  const vf t = 1.0f / (1.0f + 0.3275911f * size);
  vf p = t * 1.061405429f - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const vf y = 1.0f - p * t * exponential(-size * size);
  return x < 0.0f ? -y : y;
}

enum Activation { NOTHING, RELU, GELU, GELU_TANH, SILU, SIGMOID };

INLINE vf activate(vf x, int64_t kind) {
  switch (kind) {
    case RELU:
      return x < 0.0f ? vf{} : x;
    case GELU:
      return 0.5f * x * (1.0f + erf_of(x * 0.70710678118654752f));
    case GELU_TANH:
      return 0.5f * x * (1.0f + tanh_of(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case SILU:
      return x * sigmoid(x);
    case SIGMOID:
      return sigmoid(x);
    default:
      return x;
  }
}

// Calls `each(place, count)` for stretches of at most W numbers.
template <typename Each>
INLINE void along(int64_t count, Each each) {
  int64_t i = 0;
  for (; i + W <= count; i += W) each(i, std::integral_constant<int, W>());
  if (i < count) each(i, count - i);
}

INLINE vf take(const float* p, std::integral_constant<int, W>) { return load(p); }
INLINE vf take(const float* p, int64_t count) { return load_some(p, count); }
INLINE vf take(const uint16_t* p, std::integral_constant<int, W>) { return load(p); }
INLINE vf take(const uint16_t* p, int64_t count) { return load_some(p, count); }
INLINE void put(float* p, vf v, std::integral_constant<int, W>) { store(p, v); }
INLINE void put(float* p, vf v, int64_t count) { store_some(p, v, count); }

INLINE float dot(const float* a, const float* b, int64_t count) {
  vf total{};
  along(count, [&](int64_t i, auto n) { total += take(a + i, n) * take(b + i, n); });
  return sum(total);
}

// out[i] (+)= a · rows[i], where a row begins every `step` numbers, which may be negative.
template <bool ADD>
INLINE void dots(const float* a, const float* rows, int64_t step, int64_t count, int64_t width,
                 float* out) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    vf total[4] = {};
    const float* row = rows + i * step;
    along(width, [&](int64_t k, auto n) {
      const vf x = take(a + k, n);
      for (int j = 0; j < 4; j++) total[j] += x * take(row + j * step + k, n);
    });
    float found[4];
    sums(total, found);
    for (int j = 0; j < 4; j++) out[i + j] = ADD ? out[i + j] + found[j] : found[j];
  }
  for (; i < count; i++) {
    const float found = dot(a, rows + i * step, width);
    out[i] = ADD ? out[i] + found : found;
  }
}

// out = Σ shares[i] · rows[i], for N vectors of columns at a time.
template <int N>
INLINE void mix_some(const float* shares, const float* rows, int64_t count, int64_t width,
                     float* out) {
  vf even[N] = {}, odd[N] = {};
  int64_t i = 0;
  for (; i + 2 <= count; i += 2)
    for (int k = 0; k < N; k++) {
      even[k] += shares[i] * load(rows + i * width + k * W);
      odd[k] += shares[i + 1] * load(rows + (i + 1) * width + k * W);
    }
  for (int k = 0; k < N; k++) {
    if (i < count) even[k] += shares[i] * load(rows + i * width + k * W);
    store(out + k * W, even[k] + odd[k]);
  }
}

INLINE void mix(const float* shares, const float* rows, int64_t count, int64_t width, float* out) {
  int64_t k = 0;
  for (; k + 4 * W <= width; k += 4 * W) mix_some<4>(shares, rows + k, count, width, out + k);
  for (; k + 2 * W <= width; k += 2 * W) mix_some<2>(shares, rows + k, count, width, out + k);
  for (; k + W <= width; k += W) mix_some<1>(shares, rows + k, count, width, out + k);
  if (k == width) return;
  vf total{};
  for (int64_t i = 0; i < count; i++) total += shares[i] * load_some(rows + i * width + k, width - k);
  store_some(out + k, total, width - k);
}

// Turns scores into shares that add up to one; what is -inf gets none.
INLINE void soften(float* scores, int64_t count) {
  vf most = all(-INFINITY);
  float top = -INFINITY;
  int64_t i = 0;
  for (; i + W <= count; i += W) most = larger(most, load(scores + i));
  for (; i < count; i++) top = scores[i] > top ? scores[i] : top;
  const float rest = largest(most);
  top = rest > top ? rest : top;
  vf total{};
  along(count, [&](int64_t k, auto n) {
    vf share = exponential(take(scores + k, n) - top);
    put(scores + k, share, n);
  });
  along(count, [&](int64_t k, auto n) { total += take(scores + k, n); });
  const float scale = 1.0f / sum(total);
  along(count, [&](int64_t k, auto n) { put(scores + k, take(scores + k, n) * scale, n); });
}
