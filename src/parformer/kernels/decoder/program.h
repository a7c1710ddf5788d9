// A model as a list of operations on numbers in one arena. native/program.py writes it; every
// field is a whole number of 64 bits, addresses too, and a span is where a buffer begins in the
// arena and how far its rows lie apart.

#pragma once

#include <cstdint>

#include "blocks.h"
#include "matrix.h"

enum Code : int64_t {
  LOOK_UP,
  PLACE,
  TURNS,
  LINEAR,
  NORM,
  ATTEND,
  GATE,
  MIX,
  RECUR,
  GRAMS,
  CROSS,
  CONVOLVE,
  SYNTHESIZE,
  LAST,
  CLUSTERS,
  HINTS,
};

constexpr int64_t WORDS = 32;

struct Span {
  int64_t offset, step;
};

struct LookUp {
  int64_t code;
  Span out;
  int64_t matrix;                // of a single table
  int64_t clusters;              // how many, or none
  const int64_t* edges;          // per cluster: first token, end, table, projection
  Span narrow;                   // where a cluster's row is read to
};

struct Place {
  int64_t code;
  Span x;
  int64_t width;
  double scale;
  const float* positions;  // or nothing
  const float* type;       // or nothing
  int64_t pad, pads;       // a token that has no position, and where such are counted
};

struct Turns {
  int64_t code;
  Span out;  // per token cosines, then sines
  int64_t half;
  const double* rates;
};

struct LinearMap {
  int64_t code, matrix;
  Span in, out, plus;  // plus.offset < 0: nothing is added
  int64_t activation;
};

struct Norm {
  int64_t code, kind, width;
  Span in, out;
  const float* weight;
  const float* bias;
  double eps;
};

struct Attend {
  int64_t code;
  Span q, kv, out;
  int64_t heads, cache, reach;
  double scale;
  Span turns;  // offset < 0: none
  const float* distances;  // [heads][count][width], or nothing
  int64_t count;
  const float* content;
  const float* position;
  int64_t source;  // whose keys are seen before a text's own; -1 for none
};

struct Gate {
  int64_t code;
  Span in, out;
  int64_t width, activation, last;  // last: the second half is activated, not the first
};

struct Mix {
  int64_t code;
  Span a, b, out;
  int64_t width;
  const float* factor;
};

struct Recur {
  int64_t code;
  Span u, x, out;
  int64_t width, cells;
  const float* weight;
  const float* bias;
};

struct GramsOf {
  int64_t code;
  Span x, out;
  Grams grams;
  int64_t recent;
};

struct Cross {
  int64_t code;
  Span q, out;
  int64_t heads, source;
  double scale;
};

struct Convolve {
  int64_t code;
  Span u, kernel, out;  // kernel.offset < 0: the same weights everywhere
  const float* weights;
  int64_t channels, heads, taps, cells;
};

enum Part {
  RANDOM,           // a[head][row][column]
  FACTORED_RANDOM,  // a[head][row] · b[head][column]
  SAME_RANDOM,      // a[head][column] · b[head][column]
  DENSE,            // read[head] · a[head][column]
  TILED,            // left[head][column / rank] right[head][column % rank]
  CYCLED,           // left[head][column % own] right[head][column % rank]
};

struct PartOf {
  int64_t kind;
  double share;
  const float* a;
  const float* b;
  int64_t of_head;  // how far the weights of heads lie apart, 0 where they share them
  int64_t rank;
  Span left, right;
  int64_t own;
};

struct Synthesize {
  int64_t code;
  Span q, kv, out;  // q.offset < 0: no vanilla part
  int64_t heads, width, cache, length, parts, reach;
  double scale;     // of the vanilla part, its share included
  const PartOf* part;
};

struct Last {
  int64_t code;
  Span x, out;
  int64_t width;
};

struct ClustersOf {
  int64_t code;
  Span logits, columns;
  int64_t count;  // rare clusters
  const int64_t* sizes;
};

using LookFunction = void (*)(const int64_t*, const int64_t*, const int64_t*, const int64_t*,
                              const float*, float*, int64_t, int64_t, int64_t, int64_t);
using RepeatFunction = void (*)(const int64_t*, int64_t*, int64_t*, int64_t, int64_t, int64_t,
                                int64_t, int64_t, int64_t, int64_t);

struct Hints {
  int64_t code;
  Span x, logits, room;  // room for what a table says
  int64_t width, vocab, recent;
  LookFunction look;     // nothing where nothing was counted
  const int64_t* tables;
  const int64_t* plans;
  const float* chances;
  const float* trust;    // width weights and a bias; nothing without counts
  RepeatFunction repeats;
  int64_t most, shortest, longest;
  const float* gains;    // by length of the repeat; nothing without recall
  const float* surely;   // width weights and a bias
};
