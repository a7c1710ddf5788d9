// One step of a whole model, without Python: the operations of a program, one after the other.
//
// kernels/extension.py compiles this file on first use, kernels/decoder.py calls it, and
// native/program.py checks all sizes before a pointer gets here. Plain torch defines what comes out.

#include <cmath>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "blocks.h"
#include "matrix.h"
#include "pool.h"
#include "program.h"
#include "vector.h"

namespace {

class WithoutTinyNumbers {
 public:
#if defined(__SSE__)
  WithoutTinyNumbers() : before(_mm_getcsr()) { _mm_setcsr(before | 0x8040); }
  ~WithoutTinyNumbers() { _mm_setcsr(before); }

 private:
  const unsigned before;
#else
  WithoutTinyNumbers() {}
#endif
};

constexpr int64_t WORTH_SHARING = 96 << 10;  // bytes of weights that are worth a second thread
constexpr int64_t PIECE = 32 << 10;

struct Decoder {
  Decoder(int64_t threads) : pool(threads), scores(pool.threads()), own(pool.threads()) {}

  const float* at(const Span& span, int64_t row) const {
    return arena + span.offset + row * span.step;
  }
  float* at(const Span& span, int64_t row) { return arena + span.offset + row * span.step; }

  int64_t begin(int64_t slot) const { return late.empty() ? 0 : late[slot]; }

  // Angles of a token: the same for all slots, unless some began later.
  const float* angles_at(const Span& turns, int64_t slot, int64_t t) const {
    return at(turns, late.empty() ? t : slot * time + t);
  }

  void step(const int64_t* given, int64_t rows_of_batch, int64_t steps, int64_t place);
  void run(const LookUp& op);
  void run(const Place& op);
  void run(const Turns& op);
  void run(const LinearMap& op);
  void run(const Norm& op);
  void run(const Attend& op);
  void run(const Gate& op);
  void run(const Mix& op);
  void run(const Recur& op);
  void run(const GramsOf& op);
  void run(const Cross& op);
  void run(const Convolve& op);
  void run(const Synthesize& op);
  void run(const Last& op);
  void run(const ClustersOf& op);
  void run(const Hints& op);
  void append(Cache& cache, const Span& kv, const Span& turns, bool keys);
  void make_room(int64_t places, int64_t width);
  void map(const Matrix& m, const float* x, int64_t x_step, int64_t vectors, float* y,
           int64_t y_step, const float* plus, int64_t plus_step, int64_t activation);

  Pool pool;
  float* arena = nullptr;
  std::vector<Matrix> matrices;
  std::vector<std::unique_ptr<int64_t[]>> ops;
  std::vector<Cache> caches;
  std::vector<Cells> cells;
  std::vector<Recent> recents;
  std::vector<Source> sources;
  std::vector<std::vector<float>> scores, own;  // of each thread
  std::vector<int8_t> high, low;
  std::vector<float> input_scales, inputs;
  std::vector<int32_t> input_sums;
  const int64_t* tokens = nullptr;
  std::vector<int64_t> late;  // places before each slot's first token; empty where all begin at 0
  int64_t batch = 0, time = 0, rows = 0, position = 0;
};

void Decoder::make_room(int64_t places, int64_t width) {
  for (int64_t n = 0; n < pool.threads(); n++) {
    if (int64_t(scores[n].size()) < places) scores[n].resize(places + places / 2 + 64);
    if (int64_t(own[n].size()) < 4 * width) own[n].resize(4 * width);
  }
}

void Decoder::run(const LookUp& op) {
  for (int64_t row = 0; row < rows; row++) {
    const int64_t token = tokens[row];
    if (!op.clusters) {
      read_row(matrices[op.matrix], token, 1.0f, at(op.out, row));
      continue;
    }
    const int64_t* edge = op.edges;
    while (token >= edge[1]) edge += 4;
    read_row(matrices[edge[2]], token - edge[0], 1.0f, at(op.narrow, 0));
    map(matrices[edge[3]], at(op.narrow, 0), op.narrow.step, 1, at(op.out, row), op.out.step,
        nullptr, 0, NOTHING);
  }
}

void Decoder::run(const Place& op) {
  const float scale = float(op.scale);
  for (int64_t row = 0; row < rows; row++) {
    float* x = at(op.x, row);
    int64_t number = position + row % time - begin(row / time);
    bool there = true;
    if (op.pad >= 0) {
      float& pads = *cells[op.pads].at(row / time);
      there = tokens[row] != op.pad;
      number -= int64_t(pads);
      pads += there ? 0 : 1;
    }
    const float* place = op.positions && there ? op.positions + number * op.width : nullptr;
    along(op.width, [&](int64_t i, auto n) {
      vf v = take(x + i, n) * scale;
      if (place) v += take(place + i, n);
      if (op.type) v += take(op.type + i, n);
      put(x + i, v, n);
    });
  }
}

void Decoder::run(const Turns& op) {
  const int64_t count = late.empty() ? time : rows;
  for (int64_t row = 0; row < count; row++) {
    float* out = at(op.out, row);
    const int64_t place = position + row % time - begin(row / time);
    for (int64_t i = 0; i < op.half; i++) {
      const double angle = double(place) * op.rates[i];
      out[i] = float(std::cos(angle));
      out[op.half + i] = float(std::sin(angle));
    }
  }
}

void Decoder::map(const Matrix& m, const float* x, int64_t x_step, int64_t vectors, float* y,
                  int64_t y_step, const float* plus, int64_t plus_step, int64_t activation) {
  Inputs in{};
  const bool quantized = is_quantized(m);
  if (quantized) {
    const int64_t block = block_of(m);
    in.columns = rounded_up(m.columns, block);
    in.blocks = in.columns / block;
    const size_t numbers = vectors * in.columns, blocks = vectors * in.blocks;
    if (inputs.size() < numbers) high.resize(numbers), low.resize(numbers), inputs.resize(numbers);
    if (input_sums.size() < blocks) input_sums.resize(blocks), input_scales.resize(blocks);
    in.high = high.data(), in.low = low.data(), in.plain = inputs.data();
    in.scales = input_scales.data(), in.sums = input_sums.data();
    for (int64_t t = 0; t < vectors; t++) quantize(x + t * x_step, m.columns, block, in, t);
  }
  const int64_t bits = m.kind == FP32 ? 32 : m.kind == BF16 ? 16 : m.kind == INT8 ? 8 : 4;
  const int64_t bytes = m.rows * m.columns * bits / 8;
  int64_t pieces = 1, each = m.rows;
  if (!pool.alone() && bytes * (vectors > 4 ? vectors / 4 : 1) >= WORTH_SHARING) {
    pieces = std::min(4 * pool.threads(), std::max<int64_t>(pool.threads(), bytes / PIECE));
    each = rounded_up((m.rows + pieces - 1) / pieces, 64);
    pieces = (m.rows + each - 1) / each;
  }
  const auto work = [&](int64_t piece, int64_t) {
    const int64_t first = piece * each, last = std::min(m.rows, first + each);
    if (quantized)
      quantized_rows(m, in, vectors, first, last, y, y_step);
    else if (m.kind == FP32)
      plain_rows((const float*)m.weights, m.columns, x, x_step, vectors, first, last, y, y_step);
    else
      plain_rows((const uint16_t*)m.weights, m.columns, x, x_step, vectors, first, last, y, y_step);
    if (!m.bias && !plus && activation == NOTHING) return;
    for (int64_t t = 0; t < vectors; t++) {
      float* out = y + t * y_step + first;
      along(last - first, [&](int64_t i, auto n) {
        vf v = take(out + i, n);
        if (m.bias) v += take(m.bias + first + i, n);
        v = activate(v, activation);
        if (plus) v += take(plus + t * plus_step + first + i, n);
        put(out + i, v, n);
      });
    }
  };
  pool.run(pieces, work);
}

void Decoder::run(const LinearMap& op) {
  const float* plus = op.plus.offset < 0 ? nullptr : at(op.plus, 0);
  map(matrices[op.matrix], at(op.in, 0), op.in.step, rows, at(op.out, 0), op.out.step, plus,
      op.plus.step, op.activation);
}

void Decoder::run(const Norm& op) {
  for (int64_t row = 0; row < rows; row++)
    norm_row(at(op.in, row), at(op.out, row), op.width, op.kind, op.weight, op.bias,
             float(op.eps));
}

// Keys (unless there are none) and values of this step go behind those of the past.
void Decoder::append(Cache& cache, const Span& kv, const Span& turns, bool keys) {
  cache.reserve(batch, time);
  const int64_t width = cache.width;
  for (int64_t b = 0; b < batch; b++)
    for (int64_t t = 0; t < time; t++) {
      const float* row = at(kv, b * time + t);
      for (int64_t g = 0; g < cache.heads; g++) {
        if (keys && turns.offset >= 0) {
          const float* angles = angles_at(turns, b, t);
          turn(row + g * width, cache.key(b, g, cache.end + t), width, angles, angles + width / 2);
        } else if (keys) {
          std::memcpy(cache.key(b, g, cache.end + t), row + g * width, width * sizeof(float));
        }
        const float* value = row + (keys ? cache.heads + g : g) * width;
        std::memcpy(cache.value(b, g, cache.end + t), value, width * sizeof(float));
      }
    }
}

void Decoder::run(const Attend& op) {
  Cache& cache = caches[op.cache];
  append(cache, op.kv, op.turns, true);
  const int64_t width = cache.width, shared = op.heads / cache.heads, before = cache.end;
  Source* source = op.source < 0 ? nullptr : &sources[op.source];
  make_room(cache.length() + time + (source ? source->places : 0), width);
  const auto work = [&](int64_t piece, int64_t thread) {
    const int64_t b = piece / op.heads, h = piece % op.heads, g = h / shared;
    float* numbers = own[thread].data();
    for (int64_t t = 0; t < time; t++) {
      const int64_t end = before + t + 1;
      int64_t first = std::max(cache.start, before + begin(b) - position);
      if (op.reach) first = std::max(first, end - op.reach);
      const float* q = at(op.q, b * time + t) + h * width;
      if (op.turns.offset >= 0) {
        const float* angles = angles_at(op.turns, b, t);
        turn(q, numbers + 2 * width, width, angles, angles + width / 2);
        q = numbers + 2 * width;
      }
      float* out = at(op.out, b * time + t) + h * width;
      if (source) {
        attend_both(*source, b, g, q, cache.key(b, g, first), cache.value(b, g, first),
                    end - first, float(op.scale), scores[thread].data(), numbers, out);
        continue;
      }
      const float* r = op.distances ? op.distances + h * op.count * width : nullptr;
      attend(q, cache.key(b, g, first), cache.value(b, g, first), end - first, width,
             float(op.scale), op.content ? op.content + h * width : nullptr,
             op.position ? op.position + h * width : nullptr, r, scores[thread].data(), numbers,
             out);
    }
  };
  const int64_t pieces = batch * op.heads;
  if (pieces * time * cache.length() * width * 8 >= WORTH_SHARING)
    pool.run(pieces, work);
  else
    for (int64_t piece = 0; piece < pieces; piece++) work(piece, 0);
  cache.end += time;
  cache.start = std::max(cache.start, cache.end - cache.memory);
}

void Decoder::run(const Gate& op) {
  for (int64_t row = 0; row < rows; row++) {
    const float* in = at(op.in, row);
    float* out = at(op.out, row);
    along(op.width, [&](int64_t i, auto n) {
      const vf left = take(in + i, n), right = take(in + op.width + i, n);
      put(out + i, op.last ? left * activate(right, op.activation)
                           : activate(left, op.activation) * right, n);
    });
  }
}

void Decoder::run(const Mix& op) {
  const float factor = *op.factor;
  for (int64_t row = 0; row < rows; row++) {
    const float *a = at(op.a, row), *b = at(op.b, row);
    float* out = at(op.out, row);
    along(op.width, [&](int64_t i, auto n) {
      put(out + i, take(a + i, n) + factor * take(b + i, n), n);
    });
  }
}

void Decoder::run(const Recur& op) {
  for (int64_t row = 0; row < rows; row++)
    recur(at(op.u, row), at(op.x, row), op.weight, op.bias, cells[op.cells].at(row / time),
          at(op.out, row), op.width);
}

void Decoder::run(const GramsOf& op) {
  Recent& recent = recents[op.recent];
  recent.append(tokens, batch, time);
  for (int64_t row = 0; row < rows; row++) {
    const int64_t* last = recent.at(row / time) + recent.known - time + row % time;
    look_up(op.grams, last, at(op.x, row), at(op.out, row));
  }
  recent.forget();
}

void Decoder::run(const Cross& op) {
  Source& source = sources[op.source];
  const int64_t width = source.width, places = source.places, shared = op.heads / source.heads;
  make_room(places, width);
  const auto work = [&](int64_t piece, int64_t thread) {
    const int64_t row = piece / op.heads, h = piece % op.heads, slot = row / time;
    float* shares = scores[thread].data();
    ask_source(source, slot, h / shared, at(op.q, row) + h * width, float(op.scale), shares);
    soften(shares, places);
    mix(shares, source.value(slot, h / shared), places, width, at(op.out, row) + h * width);
  };
  const int64_t pieces = rows * op.heads;
  if (pieces * places * width * 8 >= WORTH_SHARING)
    pool.run(pieces, work);
  else
    for (int64_t piece = 0; piece < pieces; piece++) work(piece, 0);
}

void Decoder::run(const Convolve& op) {
  Cells& tail = cells[op.cells];  // as many places as taps, the last one for this token
  const int64_t channels = op.channels;
  make_room(op.heads * op.taps, 1);
  for (int64_t row = 0; row < rows; row++) {
    float* inputs = tail.at(row / time);
    const float* weights = op.weights;
    std::memcpy(inputs + (op.taps - 1) * channels, at(op.u, row), channels * sizeof(float));
    if (op.kernel.offset >= 0) {
      float* made = scores[0].data();
      std::memcpy(made, at(op.kernel, row), op.heads * op.taps * sizeof(float));
      for (int64_t h = 0; h < op.heads; h++) soften(made + h * op.taps, op.taps);
      weights = made;
    }
    convolve(inputs, weights, channels, op.heads, op.taps, at(op.out, row));
    std::memmove(inputs, inputs + channels, (op.taps - 1) * channels * sizeof(float));
  }
}

void Decoder::run(const Synthesize& op) {
  Cache& cache = caches[op.cache];
  const bool asks = op.q.offset >= 0;
  append(cache, op.kv, Span{-1, 0}, asks);
  const int64_t width = op.width, before = cache.end;
  make_room(std::max(cache.length() + time, op.length), width);
  for (int64_t b = 0; b < batch; b++)
    for (int64_t t = 0; t < time; t++) {
      const int64_t row = (position + t) % op.length, end = before + t + 1;
      const int64_t known = std::min(end - cache.start, row + 1);
      const int64_t count = op.reach ? std::min(known, op.reach) : known;
      const int64_t column = row + 1 - count;  // places of a window count from its beginning
      for (int64_t h = 0; h < op.heads; h++) {
        float* total = scores[0].data();
        if (asks) {
          dots<false>(at(op.q, b * time + t) + h * width, cache.key(b, h, end - count), width,
                      count, width, total);
          for (int64_t i = 0; i < count; i++) total[i] *= float(op.scale);
        } else {
          std::memset(total, 0, count * sizeof(float));
        }
        for (int64_t n = 0; n < op.parts; n++) {
          const PartOf& part = op.part[n];
          const float share = float(part.share);
          const float* a = part.a + h * part.of_head;
          const float* other = part.b + h * part.of_head;
          const float* left = part.kind >= DENSE ? at(part.left, b * time + t) + h * part.own : a;
          const float* right = part.kind > DENSE ? at(part.right, b * time + t) + h * part.rank : a;
          for (int64_t i = 0; i < count; i++) {
            const int64_t j = column + i;
            float found = 0;
            switch (Part(part.kind)) {
              case RANDOM: found = a[row * op.length + j]; break;
              case FACTORED_RANDOM:
                found = dot(a + row * part.rank, other + j * part.rank, part.rank);
                break;
              case SAME_RANDOM:
                found = dot(a + j * part.rank, other + j * part.rank, part.rank);
                break;
              case DENSE: found = dot(left, a + j * width, width); break;
              case TILED: found = left[j / part.rank] * right[j % part.rank]; break;
              case CYCLED: found = left[j % part.own] * right[j % part.rank]; break;
            }
            total[i] += share * found;
          }
        }
        soften(total, count);
        mix(total, cache.value(b, h, end - count), count, width,
            at(op.out, b * time + t) + h * width);
      }
    }
  cache.end += time;
  cache.start = std::max(cache.start, cache.end - cache.memory);
}

void Decoder::run(const Last& op) {
  for (int64_t b = 0; b < batch; b++)
    std::memcpy(at(op.out, b), at(op.x, b * time + time - 1), op.width * sizeof(float));
  rows = batch;
}

void Decoder::run(const ClustersOf& op) {
  for (int64_t row = 0; row < rows; row++) {
    float* words = at(op.logits, row);
    const float* columns = at(op.columns, row);
    const float whole = log_sum(words, op.sizes[0], columns, op.count);
    for (int64_t i = 0; i < op.sizes[0]; i++) words[i] -= whole;
    words += op.sizes[0];
    for (int64_t n = 0; n < op.count; n++) {
      const int64_t size = op.sizes[n + 1];
      const float shift = columns[n] - whole - log_sum(words, size, nullptr, 0);
      for (int64_t i = 0; i < size; i++) words[i] += shift;
      words += size;
    }
  }
}

void Decoder::run(const Hints& op) {
  Recent& recent = recents[op.recent];
  recent.append(tokens, batch, time);
  for (int64_t b = 0; b < batch; b++) {
    const float* x = at(op.x, b);
    float* logits = at(op.logits, b);
    const int64_t* known = recent.at(b);
    if (op.trust) {
      const float weight = 1 + dot(op.trust, x, op.width) + op.trust[op.width];
      float* counted = at(op.room, 0);
      if (op.look) {
        op.look(op.tables, op.plans, known, nullptr, op.chances, counted, 1, recent.known, 1, 1);
        for (int64_t v = 0; v < op.vocab; v++) logits[v] += weight * counted[v];
      } else {
        const float even = weight * -float(std::log(double(op.vocab)));
        for (int64_t v = 0; v < op.vocab; v++) logits[v] += even;
      }
    }
    if (op.gains) {
      int64_t expected = 0, length = 0;
      op.repeats(known, &expected, &length, 1, recent.known, 1, op.most, op.shortest, op.longest,
                 1);
      if (length > 0)
        logits[expected] += op.gains[length] + dot(op.surely, x, op.width) + op.surely[op.width];
    }
  }
  recent.forget();
}

void Decoder::step(const int64_t* given, int64_t rows_of_batch, int64_t steps, int64_t place) {
  tokens = given;
  batch = rows_of_batch;
  time = steps;
  rows = batch * time;
  position = place;
  pool.begin_step();
  for (const auto& words : ops) {
    const int64_t* op = words.get();
    switch (Code(op[0])) {
#define CASE(code, kind) \
  case code: run(*reinterpret_cast<const kind*>(op)); break;
      CASE(LOOK_UP, LookUp)
      CASE(PLACE, Place)
      CASE(TURNS, Turns)
      CASE(LINEAR, LinearMap)
      CASE(NORM, Norm)
      CASE(ATTEND, Attend)
      CASE(GATE, Gate)
      CASE(MIX, Mix)
      CASE(RECUR, Recur)
      CASE(GRAMS, GramsOf)
      CASE(CROSS, Cross)
      CASE(CONVOLVE, Convolve)
      CASE(SYNTHESIZE, Synthesize)
      CASE(LAST, Last)
      CASE(CLUSTERS, ClustersOf)
      CASE(HINTS, Hints)
#undef CASE
    }
  }
}

}  // namespace

#include "interface.h"
