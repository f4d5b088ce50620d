// One round of paged attention in float: for caches of float and float16, and where bfloat16 has no instructions.
//
// A round is a handful of tokens whose rows of K and V lie anywhere. Scores are dot products along the rows, eight at a
// time, so that one tree of additions ends all of them.
#pragma once

#include <type_traits>

#include "elements.hpp"
#include "paged_plan.hpp"

namespace octavo {

// Lanes of a (0 .. 7) and of b (8 .. 15).
template <int... I>
inline Floats pick(Floats a, Floats b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, I...);
#else
  return __builtin_shuffle(a, b, Ints{I...});
#endif
}

// Lane i becomes the sum of the lanes of sums[i].
inline Floats totals(const Floats* sums) {
  const auto pairs = [](Floats a, Floats b) {
    return pick<0, 8, 2, 10, 4, 12, 6, 14>(a, b) + pick<1, 9, 3, 11, 5, 13, 7, 15>(a, b);
  };
  const auto fours = [](Floats a, Floats b) {
    return pick<0, 1, 8, 9, 4, 5, 12, 13>(a, b) + pick<2, 3, 10, 11, 6, 7, 14, 15>(a, b);
  };
  const Floats a = fours(pairs(sums[0], sums[1]), pairs(sums[2], sums[3]));
  const Floats b = fours(pairs(sums[4], sums[5]), pairs(sums[6], sums[7]));
  return pick<0, 1, 2, 3, 8, 9, 10, 11>(a, b) + pick<4, 5, 6, 7, 12, 13, 14, 15>(a, b);
}

// R rows with 8 / R tokens.
template <int R>
inline void float_scores(const float* query, const float* const* keys, int dim, float* scores, int stride) {
  constexpr int kTokens = 8 / R;
  Floats sum[8];
  for (Floats& s : sum) s = all(0.f);
  for (int i = 0; i < dim; i += kLanes) {
    Floats q[R];
    for (int r = 0; r < R; ++r) q[r] = load<Floats>(query + r * dim + i);
    for (int t = 0; t < kTokens; ++t) {
      const Floats k = load<Floats>(keys[t] + i);
      for (int r = 0; r < R; ++r) sum[r * kTokens + t] = multiply_add(q[r], k, sum[r * kTokens + t]);
    }
  }
  const Floats whole = totals(sum);
  for (int r = 0; r < R; ++r)
    std::memcpy(scores + r * stride, reinterpret_cast<const float*>(&whole) + r * kTokens, sizeof(float) * kTokens);
}

// out[r] = by[r] * out[r] + weights[r] x values, for R rows and C * 8 columns.
template <int R, int C>
inline void float_values(const float* weights, int stride, const float* const* values, int from, int to, int column,
                         const float* by, int dim, float* out) {
  Floats sum[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) sum[r][c] = load<Floats>(out + r * dim + column + c * kLanes) * all(by[r]);
  for (int t = from; t < to; ++t) {
    Floats v[C];
    for (int c = 0; c < C; ++c) v[c] = load<Floats>(values[t] + column + c * kLanes);
    for (int r = 0; r < R; ++r) {
      const Floats w = all(weights[r * stride + t]);
      for (int c = 0; c < C; ++c) sum[r][c] = multiply_add(w, v[c], sum[r][c]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) store(out + r * dim + column + c * kLanes, sum[r][c]);
}

template <class T>
class FloatRound {
 public:
  using Query = float;
  using Weight = float;
  static constexpr int kStep = 8;  // tokens come in multiples of it

  FloatRound(int dim, void* keys, void* values)
      : dim_(dim), key_room_(static_cast<float*>(keys)), value_room_(static_cast<float*>(values)) {}

  // Makes the rows of a round readable; tokens up to the next multiple of kStep repeat the last one.
  template <class Fetch>
  void pack(const T* const* keys, const T* const* values, int tokens, Fetch& fetch) {
    for (int t = 0; t < tokens; ++t) {
      if constexpr (std::is_same_v<T, float>) {
        keys_[t] = keys[t];
        values_[t] = values[t];
      } else {
        fetch(1);
        keys_[t] = widen(keys[t], key_room_ + t * dim_);
        values_[t] = widen(values[t], value_room_ + t * dim_);
      }
    }
    for (int t = tokens; t % kStep != 0; ++t) {
      keys_[t] = keys_[tokens - 1];
      values_[t] = values_[tokens - 1];
    }
  }

  template <class Fetch>
  void scores(const float* query, int rows, int from, int to, float* scores, int stride,
              Fetch& fetch) const {
    int r = 0;
    for (; r + 2 <= rows; r += 2)
      for (int t = from; t < to; t += 4, fetch(2))
        float_scores<2>(query + r * dim_, keys_ + t, dim_, scores + r * stride + t, stride);
    for (; r < rows; ++r)
      for (int t = from; t < to; t += 8, fetch(4))
        float_scores<1>(query + r * dim_, keys_ + t, dim_, scores + r * stride + t, stride);
  }

  void values(const float* weights, int stride, int rows, int from, int to, const float* by, float* out) const {
    const auto some = [&](auto count, int r) {
      const float *w = weights + r * stride, *b = by + r;
      float* o = out + r * dim_;
      int column = 0;
      for (; column + 4 * kLanes <= dim_ && count <= 2; column += 4 * kLanes)
        float_values<count, 4>(w, stride, values_, from, to, column, b, dim_, o);
      for (; column + 2 * kLanes <= dim_; column += 2 * kLanes)
        float_values<count, 2>(w, stride, values_, from, to, column, b, dim_, o);
      for (; column < dim_; column += kLanes)
        float_values<count, 1>(w, stride, values_, from, to, column, b, dim_, o);
    };
    int r = 0;
    for (; r + 4 <= rows; r += 4) some(std::integral_constant<int, 4>(), r);
    for (; r + 2 <= rows; r += 2) some(std::integral_constant<int, 2>(), r);
    for (; r < rows; ++r) some(std::integral_constant<int, 1>(), r);
  }

 private:
  const float* widen(const T* from, float* to) const {
    for (int i = 0; i < dim_; i += kLanes) store(to + i, load8(from + i));
    return to;
  }

  int dim_;
  float *key_room_, *value_room_;
  const float *keys_[kRoundTokens], *values_[kRoundTokens];
};

}  // namespace octavo
