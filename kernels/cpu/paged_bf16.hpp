// One round of paged attention in bfloat16, with AVX-512's dot products of pairs.
//
// The cache has a token's row of K in one piece. A round's rows are turned once into the order that needs no sums across
// lanes, [16 tokens][head_dim / 2] pairs by token, and those of V into pairs of neighbouring tokens; then all query rows
// of the tile read them.
#pragma once

#include <type_traits>

#include "elements.hpp"

#if OCTAVO_AVX512
namespace octavo {

inline __m512bh pair_everywhere(const Bf16* pair) {
  int32_t both;
  std::memcpy(&both, pair, sizeof both);
  return (__m512bh)_mm512_set1_epi32(both);
}

// Transposes 16 rows of up to 16 pairs; writes `pairs` rows of 16.
inline void turn_keys(const Bf16* const* rows, int tokens, int pairs, Bf16* to) {
  const __mmask16 live = static_cast<__mmask16>((1u << pairs) - 1u);
  __m512i x[16], y[16];
  for (int t = 0; t < 16; ++t)
    x[t] = t < tokens ? _mm512_maskz_loadu_epi32(live, rows[t]) : _mm512_setzero_si512();
  for (int t = 0; t < 16; t += 2) {
    y[t] = _mm512_unpacklo_epi32(x[t], x[t + 1]);
    y[t + 1] = _mm512_unpackhi_epi32(x[t], x[t + 1]);
  }
  for (int t = 0; t < 16; t += 4)
    for (int i = 0; i < 2; ++i) {
      x[t + 2 * i] = _mm512_unpacklo_epi64(y[t + i], y[t + i + 2]);
      x[t + 2 * i + 1] = _mm512_unpackhi_epi64(y[t + i], y[t + i + 2]);
    }
  // x[4 g + i]: in each 128-bit lane L, pair 4 L + i of the tokens 4 g .. 4 g + 3.
  for (int i = 0; i < 4; ++i) {
    y[i] = _mm512_shuffle_i32x4(x[i], x[4 + i], 0x88);
    y[4 + i] = _mm512_shuffle_i32x4(x[i], x[4 + i], 0xdd);
    y[8 + i] = _mm512_shuffle_i32x4(x[8 + i], x[12 + i], 0x88);
    y[12 + i] = _mm512_shuffle_i32x4(x[8 + i], x[12 + i], 0xdd);
  }
  const auto write = [&](int pair, __m512i row) {
    if (pair < pairs) _mm512_store_si512(to + pair * 32, row);
  };
  for (int i = 0; i < 4; ++i) {
    write(i, _mm512_shuffle_i32x4(y[i], y[8 + i], 0x88));
    write(4 + i, _mm512_shuffle_i32x4(y[4 + i], y[12 + i], 0x88));
    write(8 + i, _mm512_shuffle_i32x4(y[i], y[8 + i], 0xdd));
    write(12 + i, _mm512_shuffle_i32x4(y[4 + i], y[12 + i], 0xdd));
  }
}

// Two rows of V, element by element.
inline void pair_values(const Bf16* one, const Bf16* other, int dim, Bf16* to) {
  const __m512i order = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                         5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  for (int i = 0; i < dim; i += 16) {
    const __m512i a = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(one + i)));
    const __m512i b = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(other + i)));
    _mm512_store_si512(to + 2 * i, _mm512_permutex2var_epi16(a, order, b));
  }
}

// R rows with 32 tokens.
template <int R>
inline void bf16_scores(const Bf16* keys, const Bf16* query, int dim, float* scores, int stride) {
  __m512 sum[R][2];
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  for (int pair = 0; pair < dim / 2; ++pair) {
    const __m512bh left = (__m512bh)_mm512_load_si512(keys + pair * 32);
    const __m512bh right = (__m512bh)_mm512_load_si512(keys + (dim / 2 + pair) * 32);
    for (int r = 0; r < R; ++r) {
      const __m512bh q = pair_everywhere(query + r * dim + 2 * pair);
      sum[r][0] = _mm512_dpbf16_ps(sum[r][0], left, q);
      sum[r][1] = _mm512_dpbf16_ps(sum[r][1], right, q);
    }
  }
  for (int r = 0; r < R; ++r) {
    _mm512_storeu_ps(scores + r * stride, sum[r][0]);
    _mm512_storeu_ps(scores + r * stride + 16, sum[r][1]);
  }
}

// out[r] = by[r] * out[r] + weights[r] x values, for R rows and C * 16 columns.
template <int R, int C>
inline void bf16_values(const Bf16* weights, int stride, const Bf16* values, int from, int to, int column,
                        const float* by, int dim, float* out) {
  __m512 sum[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c)
      sum[r][c] = _mm512_mul_ps(_mm512_loadu_ps(out + r * dim + column + c * 16), _mm512_set1_ps(by[r]));
  for (int t = from; t < to; t += 2) {
    __m512bh v[C];
    for (int c = 0; c < C; ++c) v[c] = (__m512bh)_mm512_load_si512(values + t * dim + 2 * (column + c * 16));
    for (int r = 0; r < R; ++r) {
      const __m512bh w = pair_everywhere(weights + r * stride + t);
      for (int c = 0; c < C; ++c) sum[r][c] = _mm512_dpbf16_ps(sum[r][c], v[c], w);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) _mm512_storeu_ps(out + r * dim + column + c * 16, sum[r][c]);
}

class Bf16Round {
 public:
  using Query = Bf16;
  using Weight = Bf16;
  static constexpr int kStep = 32;

  static bool serves(int dim) { return dim % 16 == 0; }

  Bf16Round(int dim, void* keys, void* values)
      : dim_(dim), keys_(static_cast<Bf16*>(keys)), values_(static_cast<Bf16*>(values)) {}

  // Tokens up to the next multiple of kStep become zeros.
  template <class Fetch>
  void pack(const Bf16* const* keys, const Bf16* const* values, int tokens, Fetch& fetch) {
    alignas(64) static constexpr Bf16 kZeros[kMaxDim] = {};
    const int padded = (tokens + kStep - 1) / kStep * kStep;
    for (int t = 0; t < padded; t += 16) {
      fetch(8);
      const Bf16* rows[16];
      const int live = tokens - t < 16 ? (tokens > t ? tokens - t : 0) : 16;
      for (int pair = 0; pair < dim_ / 2; pair += 16) {
        for (int i = 0; i < live; ++i) rows[i] = keys[t + i] + 2 * pair;
        const int pairs = dim_ / 2 - pair < 16 ? dim_ / 2 - pair : 16;
        turn_keys(rows, live, pairs, keys_ + t * dim_ + pair * 32);
      }
      for (int i = 0; i < 16; i += 2)
        pair_values(i < live ? values[t + i] : kZeros, i + 1 < live ? values[t + i + 1] : kZeros, dim_,
                    values_ + (t + i) * dim_);
    }
  }

  template <class Fetch>
  void scores(const Bf16* query, int rows, int from, int to, float* scores, int stride,
              Fetch& fetch) const {
    const auto some = [&](auto count, int r) {
      for (int t = from; t < to; t += kStep) {
        fetch(16);
        bf16_scores<count>(keys_ + t * dim_, query + r * dim_, dim_, scores + r * stride + t, stride);
      }
    };
    int r = 0;
    for (; r + 8 <= rows; r += 8) some(std::integral_constant<int, 8>(), r);
    for (; r + 4 <= rows; r += 4) some(std::integral_constant<int, 4>(), r);
    if (rows - r == 3) some(std::integral_constant<int, 3>(), r);
    else if (rows - r == 2) some(std::integral_constant<int, 2>(), r);
    else if (rows - r == 1) some(std::integral_constant<int, 1>(), r);
  }

  void values(const Bf16* weights, int stride, int rows, int from, int to, const float* by, float* out) const {
    const auto some = [&](auto count, int r) {
      const Bf16* w = weights + r * stride;
      float* o = out + r * dim_;
      int column = 0;
      for (; column + 64 <= dim_; column += 64)
        bf16_values<count, 4>(w, stride, values_, from, to, column, by + r, dim_, o);
      if (column + 32 <= dim_) {
        bf16_values<count, 2>(w, stride, values_, from, to, column, by + r, dim_, o);
        column += 32;
      }
      if (column < dim_) bf16_values<count, 1>(w, stride, values_, from, to, column, by + r, dim_, o);
    };
    int r = 0;
    for (; r + 4 <= rows; r += 4) some(std::integral_constant<int, 4>(), r);
    if (rows - r == 3) some(std::integral_constant<int, 3>(), r);
    else if (rows - r == 2) some(std::integral_constant<int, 2>(), r);
    else if (rows - r == 1) some(std::integral_constant<int, 1>(), r);
  }

 private:
  int dim_;
  Bf16 *keys_, *values_;
};

}  // namespace octavo
#endif
