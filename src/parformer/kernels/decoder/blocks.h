// What blocks do beside multiplying matrices: norms, attention, recurrence, convolution, look-ups.

#pragma once

#include "state.h"
#include "vector.h"

enum NormKind { LAYER, RMS, AFFINE };

INLINE void norm_row(const float* x, float* y, int64_t width, int64_t kind, const float* weight,
                     const float* bias, float eps) {
  float mean = 0, scale = 1;
  if (kind != AFFINE) {
    if (kind == LAYER) {
      vf total{};
      along(width, [&](int64_t i, auto n) { total += take(x + i, n); });
      mean = sum(total) / width;
    }
    vf squares{};
    int64_t i = 0;
    for (; i + W <= width; i += W) {
      const vf off = load(x + i) - mean;
      squares += off * off;
    }
    float rest = 0;
    for (; i < width; i++) rest += (x[i] - mean) * (x[i] - mean);
    scale = 1.0f / std::sqrt((sum(squares) + rest) / width + eps);
  }
  along(width, [&](int64_t i, auto n) {
    vf v = (take(x + i, n) - mean) * scale * take(weight + i, n);
    if (bias) v += take(bias + i, n);
    put(y + i, v, n);
  });
}

// Turns pairs (i, i + width/2) by angles whose cosines and sines are given.
INLINE void turn(const float* x, float* y, int64_t width, const float* cosines,
                 const float* sines) {
  const int64_t half = width / 2;
  along(half, [&](int64_t i, auto n) {
    const vf left = take(x + i, n), right = take(x + half + i, n);
    const vf c = take(cosines + i, n), s = take(sines + i, n);
    put(y + i, left * c - right * s, n);
    put(y + half + i, right * c + left * s, n);
  });
}

// What one query of one head takes from its keys; `r` are rows of distances from 0 on.
INLINE void attend(const float* q, const float* keys, const float* values, int64_t count,
                   int64_t width, float scale, const float* content, const float* position,
                   const float* r, float* scores, float* own, float* out) {
  const float* asked = q;
  if (r) {
    for (int64_t k = 0; k < width; k++) {
      own[k] = q[k] + content[k];
      own[width + k] = q[k] + position[k];
    }
    asked = own;
  }
  dots<false>(asked, keys, width, count, width, scores);
  if (r) dots<true>(own + width, r + (count - 1) * width, -width, count, width, scores);
  along(count, [&](int64_t i, auto n) { put(scores + i, take(scores + i, n) * scale, n); });
  soften(scores, count);
  mix(scores, values, count, width, out);
}

// Scores of the places of a source; -inf where there is no token.
INLINE void ask_source(Source& source, int64_t slot, int64_t head, const float* q, float scale,
                       float* scores) {
  const int64_t places = source.places, text = source.text[slot];
  dots<false>(q, source.key(slot, head), source.width, places, source.width, scores);
  const uint8_t* there = source.present.empty() ? nullptr : source.present.data() + text * places;
  for (int64_t i = 0; i < places; i++)
    scores[i] = there && !there[i] ? -INFINITY : scores[i] * scale;
}

// A source's places and a text's own, under one softmax.
INLINE void attend_both(Source& source, int64_t slot, int64_t head, const float* q,
                        const float* keys, const float* values, int64_t count, float scale,
                        float* scores, float* own, float* out) {
  const int64_t width = source.width, places = source.places;
  ask_source(source, slot, head, q, scale, scores);
  dots<false>(q, keys, width, count, width, scores + places);
  for (int64_t i = 0; i < count; i++) scores[places + i] *= scale;
  soften(scores, places + count);
  mix(scores, source.value(slot, head), places, width, out);
  mix(scores + places, values, count, width, own);
  for (int64_t k = 0; k < width; k++) out[k] += own[k];
}

// One token of SRU: u holds candidate, forget and reset; the cell is changed.
INLINE void recur(const float* u, const float* x, const float* weight, const float* bias,
                  float* cell, float* out, int64_t width) {
  along(width, [&](int64_t i, auto n) {
    const vf c = take(cell + i, n), fresh = take(u + i, n), in = take(x + i, n);
    const vf f = sigmoid(take(u + width + i, n) + take(weight + i, n) * c + take(bias + i, n));
    const vf r = sigmoid(take(u + 2 * width + i, n) + take(weight + width + i, n) * c +
                         take(bias + width + i, n));
    const vf next = fresh + (c - fresh) * f;
    put(cell + i, next, n);
    put(out + i, in + (next - in) * r, n);
  });
}

INLINE int64_t mixed(int64_t hash, int64_t token) {
  const uint64_t one = (uint64_t(hash) ^ uint64_t(token + 2)) * uint64_t(-7046029254386353131);
  const int64_t turned = int64_t(one) ^ (int64_t(one) >> 29);
  return int64_t(uint64_t(turned) * uint64_t(-4658895280553007687));
}

struct Grams {
  int64_t first, last, rows, width, channels, side;
  const float* const* tables;
  const float* scale;
  const float* bias;
};

// What is known of the n-grams that end at `token`, gated by how well it agrees with x.
INLINE void look_up(const Grams& g, const int64_t* token, const float* x, float* out) {
  std::memset(out, 0, g.channels * sizeof(float));
  int64_t hash = mixed(0, token[0]), begin = 0;
  const float even = 1.0f / std::sqrt(float(g.width));
  for (int64_t order = 2; order <= g.last; order++) {
    const int64_t before = token[1 - order];
    hash = mixed(hash, before);
    if (order < g.first) continue;
    int64_t number = (hash >> 24 & 0x7fffffff) % g.rows;
    if (order == 2 && before >= 0 && before < g.side && token[0] < g.side)
      number = before * g.side + token[0];
    const float* row = g.tables[order - g.first] + number * g.width;
    const int64_t place = order - g.first;
    float agrees = 0;
    for (int64_t k = 0; k < g.width; k++) agrees += x[(begin + k) % g.channels] * row[k];
    const float score = agrees * (g.scale[place] * even) + g.bias[place];
    const float gate = 1.0f / (1.0f + std::exp(-score));
    for (int64_t k = 0; k < g.width; k++) out[(begin + k) % g.channels] += gate * row[k];
    begin = (begin + g.width) % g.channels;
  }
}

// One place of a causal convolution; `inputs` are the last ones, its own at the end.
INLINE void convolve(const float* inputs, const float* weights, int64_t channels, int64_t heads,
                     int64_t taps, float* out) {
  const int64_t each = channels / heads;
  for (int64_t h = 0; h < heads; h++)
    along(each, [&](int64_t i, auto n) {
      vf total{};
      for (int64_t k = 0; k < taps; k++)
        total += weights[h * taps + k] * take(inputs + k * channels + h * each + i, n);
      put(out + h * each + i, total, n);
    });
}

// The logarithm of the sum of exponentials of one row, and of some more numbers.
INLINE float log_sum(const float* x, int64_t count, const float* more, int64_t others) {
  float most = -INFINITY;
  for (int64_t i = 0; i < count; i++) most = x[i] > most ? x[i] : most;
  for (int64_t i = 0; i < others; i++) most = more[i] > most ? more[i] : most;
  double total = 0;
  int64_t i = 0;
  for (; i + W <= count; i += W) total += sum(exponential(load(x + i) - most));
  for (; i < count; i++) total += std::exp(x[i] - most);
  for (int64_t k = 0; k < others; k++) total += std::exp(more[k] - most);
  return most + float(std::log(total));
}
