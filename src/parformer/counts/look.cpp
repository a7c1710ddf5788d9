// What does a table of counts say comes next? table.py tells how it lies in its bytes, look.py has
// the same in numpy. And what followed the last repeat of a text? recall.py has that in Python.

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

constexpr int LAST = 0x80;
constexpr double LEAST = 1e-5;

struct Room {
  int64_t bits, firsts, marks, names, chances;
};

struct Plan {
  int64_t order, vocab, width, frequencies;
  Room rooms[];
};

uint64_t extended(uint64_t hash, uint64_t token) {
  hash = (hash ^ (token + 1)) * 0x9E3779B97F4A7C15ull;
  hash ^= hash >> 29;
  return hash * 0xBF58476D1CE4E5B9ull;
}

int64_t name_at(const uint8_t* names, int64_t width, int64_t place) {
  if (width == 1) return names[place];
  if (width == 2) return reinterpret_cast<const uint16_t*>(names)[place];
  return reinterpret_cast<const uint32_t*>(names)[place];
}

// The first token of this context among all of its length, or -1.
int64_t find(const uint8_t* table, const Room& room, uint64_t hash) {
  const uint64_t bucket = hash >> (64 - room.bits);
  const uint16_t mark = hash >> (48 - room.bits);
  const auto* first = reinterpret_cast<const uint32_t*>(table + room.firsts);
  const auto* marks = reinterpret_cast<const uint16_t*>(table + room.marks);
  for (uint32_t context = first[bucket]; context < first[bucket + 1]; context++) {
    if (marks[context] != mark) continue;
    const int64_t buckets = int64_t(1) << room.bits;
    int64_t entry = first[buckets + 1 + bucket];
    for (uint32_t before = first[bucket]; before < context; before++)
      while (!(table[room.chances + entry++] & LAST)) {
      }
    return entry;
  }
  return -1;
}

void look_at(const uint8_t* table, const Plan& plan, const int64_t* tokens, int64_t known,
             const float* meaning, float* out) {
  const int64_t vocab = plan.vocab;
  std::memcpy(out, table + plan.frequencies, sizeof(float) * vocab);
  double scale = 1;  // of all that is in `out`
  uint64_t hash = 0;
  for (int64_t back = 0; back < plan.order - 1 && back < known; back++) {
    hash = extended(hash, tokens[-back]);
    const Room& room = plan.rooms[back];
    const int64_t first = find(table, room, hash);
    if (first < 0) continue;
    const uint8_t* chances = table + room.chances + first;
    const uint8_t* names = table + room.names + first * plan.width;
    double named = 0, below = 0;
    int64_t count = 0;
    do {
      named += meaning[chances[count] & (LAST - 1)];
      below += out[name_at(names, plan.width, count)];
    } while (!(chances[count++] & LAST));
    const double left = std::fmax(1 - named, LEAST);
    const double factor = left / std::fmax(1 - below * scale, LEAST);
    // chances are rounded, so what they add up to is put right at once
    const double others = (1 - below * scale) * factor;
    scale *= factor / (named + others);
    for (int64_t i = 0; i < count; i++) {
      const double told = meaning[chances[i] & (LAST - 1)] / (named + others);
      out[name_at(names, plan.width, i)] = told / scale;
    }
  }
  double total = 0;
  for (int64_t v = 0; v < vocab; v++) total += out[v];
  const float shift = -std::log(total);
#pragma omp simd
  for (int64_t v = 0; v < vocab; v++) out[v] = logf(out[v]) + shift;
}

}  // namespace

extern "C" void look(const int64_t* tables, const int64_t* plans, const int64_t* tokens,
                     const int64_t* which, const float* meaning, float* out, int64_t batch,
                     int64_t read, int64_t time, int64_t threads) {
  const int64_t before = read - time;
#pragma omp parallel for num_threads(threads) if (batch * time > 256) schedule(static)
  for (int64_t n = 0; n < batch * time; n++) {
    const int64_t row = n / time, place = before + n % time;
    const int64_t asked = which ? which[n] : 0;
    const auto& plan = *reinterpret_cast<const Plan*>(plans[asked]);
    look_at(reinterpret_cast<const uint8_t*>(tables[asked]), plan, tokens + row * read + place,
            place + 1, meaning, out + n * plan.vocab);
  }
}

extern "C" void repeats(const int64_t* tokens, int64_t* expected, int64_t* length, int64_t batch,
                        int64_t read, int64_t time, int64_t most, int64_t shortest,
                        int64_t longest, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (batch * time > 256) schedule(static)
  for (int64_t n = 0; n < batch * time; n++) {
    const int64_t end = read - time + n % time;
    const int64_t* text = tokens + n / time * read;
    int64_t best = shortest - 1;
    for (int64_t place = end - 1; place >= 0 && place >= end - most; place--) {
      // a longer repeat has the token that would make it longer
      if (text[place] != text[end] || place < best || text[place - best] != text[end - best])
        continue;
      int64_t same = 0;
      while (same < longest && same <= place && text[place - same] == text[end - same]) same++;
      if (same > best) {
        best = same;
        expected[n] = text[place + 1];
        length[n] = same;
        if (same == longest) break;
      }
    }
  }
}
