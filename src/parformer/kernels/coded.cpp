// A matrix of few bits times many vectors, with the tiles of the native decoder.

#include <vector>

#include "decoder/matrix.h"

namespace {

constexpr int64_t TOGETHER = 4 * PANEL;  // rows that a thread takes at a time
constexpr int64_t NEAR = 32;             // vectors that are read again while rows lie in a cache

}  // namespace

extern "C" void coded_multiply(const Matrix* matrix, const float* x, float* y, int64_t vectors,
                               int64_t threads) {
  const Matrix& m = *matrix;
  const int64_t block = block_of(m), columns = rounded_up(m.columns, block);
  Inputs in{};
  in.columns = columns;
  in.blocks = columns / block;
  std::vector<int8_t> high(vectors * columns), low(vectors * columns);
  std::vector<float> plain(vectors * columns), scales(vectors * in.blocks);
  std::vector<int32_t> sums(vectors * in.blocks);
  in.high = high.data(), in.low = low.data(), in.plain = plain.data();
  in.scales = scales.data(), in.sums = sums.data();
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
#pragma omp for schedule(static)
    for (int64_t v = 0; v < vectors; v++) quantize(x + v * m.columns, m.columns, block, in, v);
#pragma omp for schedule(static)
    for (int64_t first = 0; first < m.rows; first += TOGETHER) {
      const int64_t last = first + TOGETHER < m.rows ? first + TOGETHER : m.rows;
      for (int64_t v = 0; v < vectors; v += NEAR) {
        Inputs some = in;
        some.high += v * columns, some.low += v * columns, some.plain += v * columns;
        some.scales += v * in.blocks, some.sums += v * in.blocks;
        const int64_t count = vectors - v < NEAR ? vectors - v : NEAR;
        quantized_rows(m, some, count, first, last, y + v * m.rows, m.rows);
      }
      if (m.bias)
        for (int64_t v = 0; v < vectors; v++)
          for (int64_t row = first; row < last; row++) y[v * m.rows + row] += m.bias[row];
    }
  }
}
