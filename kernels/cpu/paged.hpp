// Paged attention over the cache of kernels/api.py, K and V each [block][token][KV head][head_dim], by an online softmax
// in base 2 (Milakov, Gimelshein, arXiv 1805.02867) over rounds of tokens.
//
// Only tokens that some row of a part sees are read, and of a table only their entries. All query rows of a part see the
// same rows of K and V, which are fetched for the next round while this one is computed.
#pragma once

#include <cstdlib>
#include <limits>
#include <new>

#include "elements.hpp"
#include "paged_bf16.hpp"
#include "paged_floats.hpp"
#include "paged_plan.hpp"
#include "row_ops.hpp"

namespace octavo {

constexpr int kRowsAtOnce = 16;
constexpr float kLog2e = 1.44269504088896340736f;
constexpr float kNever = -std::numeric_limits<float>::infinity();

struct Attention {
  Tables tables;
  const void *q, *k, *v;
  void* out;  // [rows][heads][dim], contiguous
  int64_t q_row, q_head;
  Strides keys, values;
  int32_t dim;
  float scale, softcap;  // softcap 0: none
};

// What one part needs beside the cache; each thread keeps one.
class Scratch {
 public:
  void reserve(int dim) {
    if (dim <= dim_) return;
    std::free(memory_);
    memory_ = nullptr;
    dim_ = 0;
    const size_t floats = static_cast<size_t>(dim) * (2 * kRoundTokens + 2 * kTileRows);
    memory_ = static_cast<float*>(std::aligned_alloc(64, floats * sizeof(float)));
    if (memory_ == nullptr) throw std::bad_alloc();
    dim_ = dim;
  }
  ~Scratch() { std::free(memory_); }

  float* keys() { return memory_; }
  float* values() { return memory_ + dim_ * kRoundTokens; }
  float* query() { return memory_ + dim_ * 2 * kRoundTokens; }
  float* out() { return memory_ + dim_ * (2 * kRoundTokens + kTileRows); }

  alignas(64) float scores[kRowsAtOnce * kRoundTokens];
  alignas(64) Bf16 weights[kRowsAtOnce * kRoundTokens];
  float top[kTileRows], total[kTileRows];
  int32_t begin[kTileRows], end[kTileRows];  // of the context, what each row sees

 private:
  float* memory_ = nullptr;
  int dim_ = 0;
};

// One row's softmax over scores [from, to), of which [lo, hi) are seen: they become weights. Returns the factor for what
// was summed before.
template <class W>
inline float softmax(float* x, W* weights, int from, int to, int lo, int hi, const Attention& a, float& top,
                     float& total) {
  Floats most = all(kNever);
  const auto see = [&](Floats value) { most = value > most ? value : most; };
  for (int t = from; t < to; t += kLanes) {
    Floats value = load<Floats>(x + t);
    value = a.softcap > 0.f ? tanh(value * all(a.scale / a.softcap)) * all(a.softcap * kLog2e)
                            : value * all(a.scale * kLog2e);
    store(x + t, value);
    see(value);
  }
  if (lo > from || hi < to) {
    std::fill(x + from, x + std::max(lo, from), kNever);
    std::fill(x + std::min(hi, to), x + to, kNever);
    most = all(kNever);
    for (int t = from; t < to; t += kLanes) see(load<Floats>(x + t));
  }
  const float old = top;
  top = std::max(old, largest(most));
  if (top == kNever) {
    for (int t = from; t < to; t += kLanes) store8(weights + t, all(0.f));
    return 1.f;
  }
  Floats sum = all(0.f);
  for (int t = from; t < to; t += kLanes) {
    const Floats p = exp2(load<Floats>(x + t) - all(top));
    sum += p;
    store8(weights + t, p);
  }
  const float by = old == top ? 1.f : std::exp2(old - top);
  total = total * by + octavo::total(sum);
  return by;
}

// Where the rows of K and V of a round's tokens lie.
template <class T>
struct Places {
  const T* keys[kRoundTokens];
  const T* values[kRoundTokens];

  void find(const Attention& a, const int32_t* table, int head, int begin, int end) {
    const T* k = static_cast<const T*>(a.k) + head * a.keys.head;
    const T* v = static_cast<const T*>(a.v) + head * a.values.head;
    const int size = a.tables.block_size;
    for (int t = begin; t < end;) {
      const int64_t block = table[t / size];
      const int stop = std::min(end, (t / size + 1) * size);
      for (; t < stop; ++t) {
        keys[t - begin] = k + block * a.keys.block + t % size * a.keys.token;
        values[t - begin] = v + block * a.values.block + t % size * a.values.token;
      }
    }
  }

};

// Fetches the rows of the next round a few at a time, so that they come in while this round is computed.
template <class T>
class Ahead {
 public:
  Ahead(const Places<T>& places, int tokens, int dim) : places_(places), tokens_(tokens), bytes_(dim * sizeof(T)) {}

  void operator()(int tokens) {
    for (const int stop = std::min(tokens_, next_ + tokens); next_ < stop; ++next_) {
      for (int i = 0; i < bytes_; i += 64) {
        __builtin_prefetch(reinterpret_cast<const char*>(places_.keys[next_]) + i);
        __builtin_prefetch(reinterpret_cast<const char*>(places_.values[next_]) + i);
      }
    }
  }

 private:
  const Places<T>& places_;
  int tokens_, bytes_, next_ = 0;
};

// Attends `rows` rows (their queries and limits are in the scratch) to the tokens [begin, end) of a table.
template <class Round, class T>
inline void attend(const Attention& a, const int32_t* table, int head, int begin, int end, int rows, Scratch& s) {
  const int dim = a.dim;
  const auto* query = reinterpret_cast<const typename Round::Query*>(s.query());
  Round round(dim, s.keys(), s.values());
  Places<T> places[2];
  std::fill(s.top, s.top + rows, kNever);
  std::fill(s.total, s.total + rows, 0.f);
  std::fill(s.out(), s.out() + rows * dim, 0.f);
  if (begin < end) places[0].find(a, table, head, begin, std::min(end, begin + kRoundTokens));
  for (int at = begin, turn = 0; at < end; at += kRoundTokens, turn ^= 1) {
    const int tokens = std::min(kRoundTokens, end - at), ahead = std::min(kRoundTokens, end - at - tokens);
    if (ahead > 0) places[turn ^ 1].find(a, table, head, at + tokens, at + tokens + ahead);
    Ahead<T> fetch(places[turn ^ 1], ahead, dim);
    round.pack(places[turn].keys, places[turn].values, tokens, fetch);
    for (int first = 0; first < rows; first += kRowsAtOnce) {
      const int count = std::min(kRowsAtOnce, rows - first);
      const int lo = std::max(0, *std::min_element(s.begin + first, s.begin + first + count) - at);
      const int hi = std::min(tokens, *std::max_element(s.end + first, s.end + first + count) - at);
      if (lo >= hi) continue;
      const int from = lo / Round::kStep * Round::kStep, to = (hi + Round::kStep - 1) / Round::kStep * Round::kStep;
      round.scores(query + first * dim, count, from, to, s.scores, kRoundTokens, fetch);
      float by[kRowsAtOnce];
      typename Round::Weight* weights;
      if constexpr (std::is_same_v<typename Round::Weight, float>) weights = s.scores;
      else weights = s.weights;
      for (int r = 0; r < count; ++r)
        by[r] = softmax(s.scores + r * kRoundTokens, weights + r * kRoundTokens, from, to,
                        std::clamp(s.begin[first + r] - at, from, to), std::clamp(s.end[first + r] - at, from, hi), a,
                        s.top[first + r], s.total[first + r]);
      round.values(weights, kRoundTokens, count, from, to, by, s.out() + first * dim);
    }
  }
}

}  // namespace octavo
