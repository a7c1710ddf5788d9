// Which token comes next? The same rules as generate/writing.py, in the same order.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {


int64_t largest_place(const float* x, int64_t count) {
  return std::max_element(x, x + count) - x;
}

void keep_top_k(std::vector<float>& logits, int64_t k) {
  std::vector<float> sorted(logits);
  k = std::min<int64_t>(k, sorted.size());
  std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<float>());
  const float least = sorted[k - 1];
  for (float& logit : logits)
    if (logit < least) logit = -INFINITY;
}

void keep_top_p(std::vector<float>& logits, double p) {
  std::vector<int64_t> order(logits.size());
  for (size_t n = 0; n < order.size(); n++) order[n] = n;
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
  double total = 0;
  const float most = logits[order[0]];
  for (const float logit : logits) total += std::exp(double(logit - most));
  double before = 0;
  for (const int64_t n : order) {
    const double share = std::exp(double(logits[n] - most)) / total;
    if (before >= p) logits[n] = -INFINITY;
    before += share;
  }
}

int64_t draw(const std::vector<float>& logits, double uniform) {
  const double most = *std::max_element(logits.begin(), logits.end());
  std::vector<double> sums(logits.size());
  double total = 0;
  for (size_t n = 0; n < logits.size(); n++)
    sums[n] = total += std::exp(double(logits[n]) - most);
  return std::upper_bound(sums.begin(), sums.end(), uniform * total) - sums.begin();
}

}  // namespace

// 0 is fine, 1 no memory, 2 numbers that are not finite. `seen` says of each token whether it was
// there before; nothing where nobody asks.
extern "C" int64_t choose_tokens(const float* logits, int64_t step, int64_t count, int64_t rows,
                                 const uint8_t* seen, int64_t seen_step, const double* rules,
                                 int64_t top_k, const double* uniforms, int64_t* chosen) {
  const double penalty = rules[0], temperature = rules[1], top_p = rules[2];
  try {
    for (int64_t b = 0; b < rows; b++) {
      const float* row = logits + b * step;
      const int64_t most = largest_place(row, count);
      bool fine = std::isfinite(row[most]);
      for (int64_t v = 0; fine && v < count; v++) fine = row[v] == row[v];
      if (!fine) return 2;
      if (penalty == 1 && temperature == 0) {
        chosen[b] = most;
        continue;
      }
      std::vector<float> own(row, row + count);
      if (penalty != 1)
        for (int64_t v = 0; v < count; v++)
          if (seen[b * seen_step + v])
            own[v] = own[v] > 0 ? own[v] / float(penalty) : own[v] * float(penalty);
      if (temperature == 0) {
        chosen[b] = largest_place(own.data(), count);
        continue;
      }
      for (float& logit : own) logit /= float(temperature);
      if (top_k) keep_top_k(own, top_k);
      if (top_p < 1) keep_top_p(own, top_p);
      chosen[b] = draw(own, uniforms[b]);
    }
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}
