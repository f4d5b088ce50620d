// The two products of attention over bf16 keys and values: scores by vdpbf16ps, and weights, rounded to bf16, times
// values.
#pragma once

#include "rounds.hpp"

namespace octavo {
namespace bf16 {

#if OCTAVO_AVX512
// Scores of R rows with B blocks. While it computes, it fetches the keys of the next round line by line.
template <int R, int B>
inline void scores_some(const uint8_t* const* keys, const uint8_t* const* ahead, const uint16_t* query, int dim,
                        float (*scores)[kRound + kBlock], int column) {
  __m512 sum[R][B];
  for (int r = 0; r < R; ++r)
    for (int b = 0; b < B; ++b) sum[r][b] = _mm512_setzero_ps();
  for (int j = 0; j < dim / 2; ++j) {
    __m512bh key[B];
    for (int b = 0; b < B; ++b) {
      key[b] = (__m512bh)_mm512_load_si512(keys[b] + 64 * j);
      prefetch(ahead[b] + 64 * j);
    }
    for (int r = 0; r < R; ++r) {
      int32_t pair;
      std::memcpy(&pair, query + r * dim + 2 * j, 4);
      const __m512bh q = (__m512bh)_mm512_set1_epi32(pair);
      for (int b = 0; b < B; ++b) sum[r][b] = _mm512_dpbf16_ps(sum[r][b], key[b], q);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int b = 0; b < B; ++b) _mm512_store_ps(&scores[r][column + kBlock * b], sum[r][b]);
}

// Weights of R rows times values of 16 * C numbers. The values of the next round are fetched meanwhile.
template <int C, int R>
inline void values_some(const uint16_t* const* values, const uint8_t* const* ahead, int blocks,
                        const uint16_t (*weights)[kRound], const float* by, float* out) {
  __m512 sum[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c)
      sum[r][c] = _mm512_mul_ps(_mm512_load_ps(out + (r * C + c) * 16), _mm512_set1_ps(by[r]));
  for (int b = 0; b < blocks; ++b) {
    const uint8_t* next = ahead[b] + kBlock * C * 16 * 2;
    for (int pair = 0; pair < kBlock / 2; ++pair) {
      __m512bh value[C];
      for (int c = 0; c < C; ++c) prefetch(next + (pair * C + c) * 64);
      for (int c = 0; c < C; ++c) value[c] = (__m512bh)_mm512_load_si512(values[b] + (pair * C + c) * 32);
      for (int r = 0; r < R; ++r) {
        int32_t both;
        std::memcpy(&both, &weights[r][b * kBlock + 2 * pair], 4);
        const __m512bh p = (__m512bh)_mm512_set1_epi32(both);
        for (int c = 0; c < C; ++c) sum[r][c] = _mm512_dpbf16_ps(sum[r][c], value[c], p);
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) _mm512_store_ps(out + (r * C + c) * 16, sum[r][c]);
}

template <int C>
inline void values_rows(const uint16_t* const* values, const uint8_t* const* ahead, int blocks,
                        const uint16_t (*weights)[kRound], const float* by, int rows, float* out) {
  constexpr int kAtOnce = C <= 4 ? 4 : C <= 8 ? 2 : 1;
  int r = 0;
  for (; r + kAtOnce <= rows; r += kAtOnce)
    values_some<C, kAtOnce>(values, ahead, blocks, weights + r, by + r, out + r * C * 16);
  if constexpr (kAtOnce == 4) {
    if (rows - r == 3) return values_some<C, 3>(values, ahead, blocks, weights + r, by + r, out + r * C * 16);
    if (rows - r == 2) return values_some<C, 2>(values, ahead, blocks, weights + r, by + r, out + r * C * 16);
  }
  for (; r < rows; ++r) values_some<C, 1>(values, ahead, blocks, weights + r, by + r, out + r * C * 16);
}

inline bool fast_dim(int dim) { return dim == 32 || dim == 64 || dim == 80 || dim == 96 || dim == 128; }
#endif

// The same two products without AVX-512's bf16 instructions: pairs become floats by a shift and by a mask.
template <int R>
inline void scores_plain(const uint8_t* key, const uint16_t* query, int dim, float (*scores)[kRound + kBlock],
                         int column) {
  Floats sum[R][2];
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = all(0.f);
  for (int j = 0; j < dim / 2; ++j) {
    const Words left = load<Words>(key + 64 * j), right = load<Words>(key + 64 * j + 32);
    for (int r = 0; r < R; ++r) {
      const Floats a = all(bf16_to_float(query[r * dim + 2 * j])), b = all(bf16_to_float(query[r * dim + 2 * j + 1]));
      sum[r][0] = multiply_add(seconds(left), b, multiply_add(firsts(left), a, sum[r][0]));
      sum[r][1] = multiply_add(seconds(right), b, multiply_add(firsts(right), a, sum[r][1]));
    }
  }
  for (int r = 0; r < R; ++r) {
    store(&scores[r][column], sum[r][0]);
    store(&scores[r][column + kLanes], sum[r][1]);
  }
}

template <int R>
inline void values_plain(const uint16_t* const* values, int blocks, const uint16_t (*weights)[kRound], const float* by,
                         int dim, float* out) {
  for (int i = 0; i < dim; i += kLanes) {
    Floats sum[R];
    for (int r = 0; r < R; ++r) sum[r] = load<Floats>(out + r * dim + i) * all(by[r]);
    for (int b = 0; b < blocks; ++b)
      for (int pair = 0; pair < kBlock / 2; ++pair) {
        const Words both = load<Words>(values[b] + (pair * dim + i) * 2);
        for (int r = 0; r < R; ++r) {
          const uint16_t* w = &weights[r][b * kBlock + 2 * pair];
          sum[r] = multiply_add(firsts(both), all(bf16_to_float(w[0])), sum[r]);
          sum[r] = multiply_add(seconds(both), all(bf16_to_float(w[1])), sum[r]);
        }
      }
    for (int r = 0; r < R; ++r) store(out + r * dim + i, sum[r]);
  }
}

}  // namespace bf16

class Bf16Kv {
 public:
  Bf16Kv(int dim, const uint16_t* query, int rows, Scratch& scratch)
      : dim_(dim), query_(query), rows_(rows), s_(scratch) {}

  void score(const Round& round) const {
#if OCTAVO_AVX512
    if (bf16::fast_dim(dim_)) {
      for (int b = 0; b < round.blocks; b += 2) {
        const uint8_t* const* keys = round.block + b;
        const uint8_t* const* ahead = round.ahead + b;
        const int column = b * kBlock;
        switch (rows_) {
          case 1: bf16::scores_some<1, 2>(keys, ahead, query_, dim_, s_.scores, column); break;
          case 2: bf16::scores_some<2, 2>(keys, ahead, query_, dim_, s_.scores, column); break;
          case 3: bf16::scores_some<3, 2>(keys, ahead, query_, dim_, s_.scores, column); break;
          case 4: bf16::scores_some<4, 2>(keys, ahead, query_, dim_, s_.scores, column); break;
          default:
            for (int r = 0; r < rows_; r += 8)
              bf16::scores_some<8, 2>(keys, ahead, query_ + r * dim_, dim_, s_.scores + r, column);
        }
      }
      return;
    }
#endif
    for (int b = 0; b < round.blocks; ++b)
      for (int r = 0; r < rows_; r += 4)
        bf16::scores_plain<4>(round.block[b], query_ + r * dim_, dim_, s_.scores + r, b * kBlock);
  }

  void add(const Round& round, State& state) const {
    const uint16_t* values[kRoundBlocks];
    for (int b = 0; b < round.blocks; ++b)
      values[b] = reinterpret_cast<const uint16_t*>(round.block[b]) + kBlock * dim_;
    if (round.written < kBlock) values[round.blocks - 1] = without_unwritten(values[round.blocks - 1], round.written);
    float by[kRows];
    for (int r = 0; r < rows_; ++r)
      by[r] = softmax_round(s_.scores[r], round.blocks * kBlock, state.top[r], state.total[r],
                            [w = s_.weights[r]](int t, auto p) { store_weights(w + t, p); });
#if OCTAVO_AVX512
    switch (dim_) {
      case 32: return bf16::values_rows<2>(values, round.ahead, round.blocks, s_.weights, by, rows_, state.out);
      case 64: return bf16::values_rows<4>(values, round.ahead, round.blocks, s_.weights, by, rows_, state.out);
      case 80: return bf16::values_rows<5>(values, round.ahead, round.blocks, s_.weights, by, rows_, state.out);
      case 96: return bf16::values_rows<6>(values, round.ahead, round.blocks, s_.weights, by, rows_, state.out);
      case 128: return bf16::values_rows<8>(values, round.ahead, round.blocks, s_.weights, by, rows_, state.out);
      default: break;
    }
#endif
    int r = 0;
    for (; r + 4 <= rows_; r += 4)
      bf16::values_plain<4>(values, round.blocks, s_.weights + r, by + r, dim_, state.out + r * dim_);
    for (; r < rows_; ++r)
      bf16::values_plain<1>(values, round.blocks, s_.weights + r, by + r, dim_, state.out + r * dim_);
  }

 private:
#if OCTAVO_AVX512
  static void store_weights(uint16_t* to, __m512 p) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(p));
  }
#else
  static void store_weights(uint16_t* to, Floats p) {
    for (int i = 0; i < kLanes; ++i) to[i] = float_to_bf16(p[i]);
  }
#endif

  // A copy of a block's values whose unwritten slots are zero: zero times NaN is NaN.
  const uint16_t* without_unwritten(const uint16_t* from, int written) const {
    for (int pair = 0; pair < kBlock / 2; ++pair)
      for (int i = 0; i < dim_; ++i)
        for (int side = 0; side < 2; ++side) {
          const int at = (pair * dim_ + i) * 2 + side;
          s_.tail[at] = 2 * pair + side < written ? from[at] : 0;
        }
    return s_.tail;
  }

  const int dim_;
  const uint16_t* query_;
  const int rows_;
  Scratch& s_;
};

}  // namespace octavo
