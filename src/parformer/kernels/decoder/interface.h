// What Python calls. Whatever fails for want of memory says so by its answer: 0 is fine.

#pragma once

#include "choice.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace {

template <typename Do>
int64_t guarded(Do what) {
  try {
    what();
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

// Large pages save the processor a search for each small one: a fifth of the time to read weights.
// Addresses stay what they are, and where it cannot be done nothing changes.
void in_large_pages(const Matrix& m) {
#if defined(__linux__)
  constexpr uintptr_t page = uintptr_t(1) << 21;
  constexpr int collapse = 25;  // MADV_COLLAPSE, which older headers lack
  const int64_t bits = m.kind == FP32 ? 32 : m.kind == BF16 ? 16 : m.kind == INT8 ? 8 : 4;
  const uintptr_t begin = uintptr_t(m.weights), end = begin + m.rows * m.columns * bits / 8;
  if (end - begin < page / 8) return;
  // one by one: where the first or the last reaches beyond what is mapped, the others still work
  for (uintptr_t first = begin / page * page; first < end; first += page)
    madvise(reinterpret_cast<void*>(first), page, collapse);
#endif
}

}  // namespace

extern "C" {

// `states` has four numbers for each: what it is, and its sizes.
Decoder* decoder_new(const int64_t* ops, int64_t op_count, const Matrix* matrices,
                     int64_t matrix_count, const int64_t* states, int64_t state_count,
                     float* arena, int64_t threads) {
  try {
    auto made = std::make_unique<Decoder>(threads);
    made->arena = arena;
    made->matrices.assign(matrices, matrices + matrix_count);
    for (const Matrix& m : made->matrices) in_large_pages(m);
    for (int64_t n = 0; n < op_count; n++) {
      made->ops.push_back(std::make_unique<int64_t[]>(WORDS));
      std::memcpy(made->ops.back().get(), ops + n * WORDS, WORDS * sizeof(int64_t));
    }
    for (int64_t n = 0; n < state_count; n++) {
      const int64_t* state = states + 4 * n;
      if (state[0] == 0) made->caches.push_back(Cache{state[1], state[2], state[3]});
      if (state[0] == 1) made->cells.push_back(Cells{state[1], {}});
      if (state[0] == 2) made->recents.push_back(Recent{state[1]});
      if (state[0] == 3) made->sources.push_back(Source{state[1], state[2]});
    }
    return made.release();
  } catch (const std::exception&) {
    return nullptr;
  }
}

void decoder_free(Decoder* decoder) { delete decoder; }

int64_t decoder_step(Decoder* decoder, const int64_t* tokens, int64_t batch, int64_t time,
                     int64_t position) {
  WithoutTinyNumbers quick;
  return guarded([&] { decoder->step(tokens, batch, time, position); });
}

// Keys of all heads, then their values, [slots][2 · heads][places][width].
int64_t cache_put(Decoder* decoder, int64_t number, const float* rows, int64_t slots,
                  int64_t places, int64_t keys) {
  Cache& cache = decoder->caches[number];
  return guarded([&] {
    cache.start = cache.end = 0;
    cache.reserve(slots, places + 64);
    const int64_t parts = keys ? 2 : 1, size = places * cache.width;
    for (int64_t b = 0; b < slots && places; b++)
      for (int64_t g = 0; g < cache.heads; g++) {
        const float* own = rows + (b * parts * cache.heads + g) * size;
        if (keys) std::memcpy(cache.key(b, g, 0), own, size * sizeof(float));
        const float* values = own + (keys ? cache.heads * size : 0);
        std::memcpy(cache.value(b, g, 0), values, size * sizeof(float));
      }
    cache.end = places;
  });
}

int64_t cache_length(Decoder* decoder, int64_t number) { return decoder->caches[number].length(); }

void cache_take(Decoder* decoder, int64_t number, float* rows, int64_t slots, int64_t keys) {
  Cache& cache = decoder->caches[number];
  const int64_t parts = keys ? 2 : 1, size = cache.length() * cache.width;
  for (int64_t b = 0; b < slots && size; b++)
    for (int64_t g = 0; g < cache.heads; g++) {
      float* own = rows + (b * parts * cache.heads + g) * size;
      if (keys) std::memcpy(own, cache.key(b, g, cache.start), size * sizeof(float));
      float* values = own + (keys ? cache.heads * size : 0);
      std::memcpy(values, cache.value(b, g, cache.start), size * sizeof(float));
    }
}

int64_t cells_put(Decoder* decoder, int64_t number, const float* numbers, int64_t slots) {
  Cells& cells = decoder->cells[number];
  return guarded([&] { cells.numbers.assign(numbers, numbers + slots * cells.size); });
}

void cells_take(Decoder* decoder, int64_t number, float* numbers, int64_t slots) {
  Cells& cells = decoder->cells[number];
  std::memcpy(numbers, cells.numbers.data(), slots * cells.size * sizeof(float));
}

int64_t recent_put(Decoder* decoder, int64_t number, const int64_t* tokens, int64_t slots,
                   int64_t known) {
  Recent& recent = decoder->recents[number];
  return guarded([&] {
    recent.tokens.assign(slots * recent.room(), 0);
    recent.start = recent.known = 0;
    recent.append(tokens, slots, known);
    recent.forget();
  });
}

int64_t recent_known(Decoder* decoder, int64_t number) { return decoder->recents[number].known; }

void recent_take(Decoder* decoder, int64_t number, int64_t* tokens, int64_t slots) {
  Recent& recent = decoder->recents[number];
  for (int64_t b = 0; b < slots && recent.known; b++)
    std::memcpy(tokens + b * recent.known, recent.at(b), recent.known * sizeof(int64_t));
}

int64_t source_put(Decoder* decoder, int64_t number, const float* rows, const uint8_t* present,
                   int64_t slots, int64_t places) {
  Source& source = decoder->sources[number];
  return guarded([&] {
    const int64_t size = source.heads * places * source.width;
    source.places = places;
    source.keys.resize(slots * size);
    source.values.resize(slots * size);
    source.text.resize(slots);
    for (int64_t b = 0; b < slots; b++) {
      std::memcpy(source.keys.data() + b * size, rows + 2 * b * size, size * sizeof(float));
      std::memcpy(source.values.data() + b * size, rows + (2 * b + 1) * size, size * sizeof(float));
      source.text[b] = b;
    }
    source.present.clear();
    if (present) source.present.assign(present, present + slots * places);
  });
}

void source_take(Decoder* decoder, int64_t number, float* rows, uint8_t* present, int64_t slots) {
  Source& source = decoder->sources[number];
  const int64_t places = source.places, size = source.heads * places * source.width;
  for (int64_t b = 0; b < slots; b++) {
    const int64_t text = source.text[b];
    std::memcpy(rows + 2 * b * size, source.keys.data() + text * size, size * sizeof(float));
    std::memcpy(rows + (2 * b + 1) * size, source.values.data() + text * size, size * sizeof(float));
    if (!source.present.empty())
      std::memcpy(present + b * places, source.present.data() + text * places, places);
  }
}

int64_t source_places(Decoder* decoder, int64_t number) { return decoder->sources[number].places; }

int64_t source_masked(Decoder* decoder, int64_t number) {
  return !decoder->sources[number].present.empty();
}

// Places before each slot's first token; none of them where all began together.
int64_t decoder_late(Decoder* decoder, const int64_t* late, int64_t slots) {
  return guarded([&] { decoder->late.assign(late, late + slots); });
}

// Goes on with these slots, in this order.
int64_t decoder_rows(Decoder* decoder, const int64_t* index, int64_t count) {
  return guarded([&] {
    for (Cache& cache : decoder->caches) cache.choose(index, count);
    for (Cells& cells : decoder->cells) {
      std::vector<float> next(count * cells.size);
      for (int64_t n = 0; n < count; n++)
        std::memcpy(next.data() + n * cells.size, cells.at(index[n]), cells.size * sizeof(float));
      cells.numbers.swap(next);
    }
    for (Recent& recent : decoder->recents) {
      std::vector<int64_t> next(count * recent.room());
      for (int64_t n = 0; n < count; n++)
        std::memcpy(next.data() + n * recent.room() + recent.start, recent.at(index[n]),
                    recent.known * sizeof(int64_t));
      recent.tokens.swap(next);
    }
    if (!decoder->late.empty()) {
      std::vector<int64_t> next(count);
      for (int64_t n = 0; n < count; n++) next[n] = decoder->late[index[n]];
      decoder->late.swap(next);
    }
    for (Source& source : decoder->sources) {
      std::vector<int64_t> next(count);
      for (int64_t n = 0; n < count; n++) next[n] = source.text[index[n]];
      source.text.swap(next);
    }
  });
}

}  // extern "C"
