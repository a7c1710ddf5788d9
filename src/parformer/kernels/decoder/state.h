// What a step remembers of the past, in memory of its own: rows of a batch in slots side by side.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

// Keys and values that grow at the end, [slot][head][places][width] each.
struct Cache {
  int64_t heads, width, memory;
  int64_t start = 0, end = 0, capacity = 0;
  std::vector<float> keys, values, spare;

  int64_t length() const { return end - start; }

  float* key(int64_t slot, int64_t head, int64_t place) {
    return keys.data() + ((slot * heads + head) * capacity + place) * width;
  }

  float* value(int64_t slot, int64_t head, int64_t place) {
    return values.data() + ((slot * heads + head) * capacity + place) * width;
  }

  // Lays the rows that are kept out anew: `slots` of them, taken from these, with room for more.
  void arrange(const int64_t* from, int64_t slots, int64_t room) {
    const int64_t kept = length();
    for (std::vector<float>* rows : {&keys, &values}) {
      spare.resize(slots * heads * room * width);
      for (int64_t slot = 0; slot < slots; slot++)
        for (int64_t head = 0; kept && head < heads; head++)
          std::memcpy(spare.data() + (slot * heads + head) * room * width,
                      rows->data() + (((from ? from[slot] : slot) * heads + head) * capacity + start) * width,
                      kept * width * sizeof(float));
      rows->swap(spare);
    }
    std::vector<float>().swap(spare);
    capacity = room;
    start = 0;
    end = kept;
  }

  // Goes on with these slots, in this order. Beams choose in every step, and most of them stay
  // where they are: only those that move are copied, unless there are more of them than before, or
  // so few that memory is worth giving back.
  void choose(const int64_t* from, int64_t slots) {
    const int64_t each = heads * capacity * width;
    const int64_t had = each ? int64_t(values.size()) / each : 0;
    if (slots > had || 2 * slots < had) {
      arrange(from, slots, length() + std::max<int64_t>(64, length() / 2));
      return;
    }
    // A slot may be overwritten once nobody else has to be copied from it.
    std::vector<int64_t> readers(had, 0), ready;
    for (int64_t slot = 0; slot < slots; slot++) readers[from[slot]] += from[slot] != slot;
    std::vector<bool> done(slots);
    for (int64_t slot = 0; slot < slots; slot++) {
      done[slot] = from[slot] == slot;
      if (!done[slot] && !readers[slot]) ready.push_back(slot);
    }
    while (!ready.empty()) {
      const int64_t slot = ready.back(), source = from[slot];
      ready.pop_back();
      copy(source, slot);
      done[slot] = true;
      if (--readers[source] == 0 && source < slots && !done[source]) ready.push_back(source);
    }
    // What is left goes round in circles, for which one slot is put aside.
    for (int64_t first = 0; first < slots; first++) {
      if (done[first]) continue;
      set_aside(first);
      int64_t slot = first;
      for (; from[slot] != first; slot = from[slot]) {
        copy(from[slot], slot);
        done[slot] = true;
      }
      put_back(slot);
      done[slot] = true;
    }
  }

  void copy(int64_t source, int64_t slot) {
    for (std::vector<float>* rows : {&keys, &values})
      for (int64_t head = 0; head < heads; head++)
        std::memcpy(rows->data() + ((slot * heads + head) * capacity + start) * width,
                    rows->data() + ((source * heads + head) * capacity + start) * width,
                    length() * width * sizeof(float));
  }

  void set_aside(int64_t slot) {
    const int64_t size = heads * capacity * width;
    spare.assign(keys.begin() + slot * size, keys.begin() + (slot + 1) * size);
    spare.insert(spare.end(), values.begin() + slot * size, values.begin() + (slot + 1) * size);
  }

  void put_back(int64_t slot) {
    const int64_t size = heads * capacity * width;
    std::copy(spare.begin(), spare.begin() + size, keys.begin() + slot * size);
    std::copy(spare.begin() + size, spare.end(), values.begin() + slot * size);
    std::vector<float>().swap(spare);
  }

  // Makes room for more places in all slots.
  void reserve(int64_t slots, int64_t more) {
    if (end + more <= capacity && int64_t(keys.size()) >= slots * heads * capacity * width) return;
    const int64_t kept = length(), slack = std::max<int64_t>(64, kept / 2);
    if (kept + more + slack / 2 > capacity || int64_t(keys.size()) < slots * heads * capacity * width) {
      arrange(nullptr, slots, kept + more + slack);
      return;
    }
    for (std::vector<float>* rows : {&keys, &values})
      for (int64_t n = 0; n < slots * heads; n++) {
        float* own = rows->data() + n * capacity * width;
        std::memmove(own, own + start * width, kept * width * sizeof(float));
      }
    start = 0;
    end = kept;
  }
};

// Numbers of a fixed size, [slot][size]: cells, the tails of convolutions.
struct Cells {
  int64_t size;
  std::vector<float> numbers;

  float* at(int64_t slot) { return numbers.data() + slot * size; }
};

// The last tokens of each slot, as many as are known, at most `most`.
struct Recent {
  int64_t most, known = 0;
  std::vector<int64_t> tokens;  // [slot][room]
  int64_t start = 0;

  int64_t room() const { return 2 * most + 64; }

  int64_t* at(int64_t slot) { return tokens.data() + slot * room() + start; }

  // Adds tokens [slot][count] behind those known; afterwards `forget` drops the oldest.
  void append(const int64_t* more, int64_t slots, int64_t count) {
    if (start + known + count > room()) {
      for (int64_t slot = 0; slot < slots; slot++) {
        int64_t* own = tokens.data() + slot * room();
        std::memmove(own, own + start, known * sizeof(int64_t));
      }
      start = 0;
    }
    for (int64_t slot = 0; slot < slots && count; slot++)
      std::memcpy(at(slot) + known, more + slot * count, count * sizeof(int64_t));
    known += count;
  }

  void forget() {
    const int64_t over = std::max<int64_t>(0, known - most);
    start += over;
    known -= over;
  }
};

// Keys and values of a source, which never change: rows of a batch may share them.
struct Source {
  int64_t heads, width;
  int64_t places = 0;
  std::vector<float> keys, values;  // [text][head][places][width]
  std::vector<uint8_t> present;     // [text][places], or nothing where all are there
  std::vector<int64_t> text;        // of each slot

  const float* key(int64_t slot, int64_t head) const {
    return keys.data() + (text[slot] * heads + head) * places * width;
  }

  const float* value(int64_t slot, int64_t head) const {
    return values.data() + (text[slot] * heads + head) * places * width;
  }
};
