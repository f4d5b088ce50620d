// The two products of attention over int8 keys and values, in whole numbers by vpdpbusd.
//
// A row of the query becomes 16-bit whole numbers with one scale, as two planes of bytes, 256 * high + low; so do a
// round's weights, after they took the scales of their values on. Two planes make as many instructions as bf16 takes,
// and lose less; half the memory is read. One plane of weights would drop the many small ones beside a large one. What
// is summed within a round is exact, so its order does not matter.
//
// Without AVX-512: bytes become floats, queries and weights stay such.
#pragma once

#include "rounds.hpp"

namespace octavo {
namespace int8 {

#if OCTAVO_AVX512
inline __m512 scales16(const uint16_t* from) {
  const __m256i bits = _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

inline __m512i four(const void* bytes) {  // in every lane
  int32_t word;
  std::memcpy(&word, bytes, 4);
  return _mm512_set1_epi32(word);
}

inline __m512 joined(__m512i high, __m512i low) {
  return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 8), low));
}

// Scores of R rows with B blocks; the keys of the next round are fetched meanwhile, line by line. minus[r]: what the
// 128 that keys have on top make in a sum.
template <int R, int B>
inline void scores_some(const uint8_t* const* keys, const uint8_t* const* ahead, const int8_t* query_high,
                        const int8_t* query_low, const int32_t* minus, const float* by, int dim,
                        float (*scores)[kRound + kBlock], int column) {
  __m512i high[R][B], low[R][B];
  for (int r = 0; r < R; ++r)
    for (int b = 0; b < B; ++b) {
      high[r][b] = _mm512_setzero_si512();
      low[r][b] = _mm512_set1_epi32(minus[r]);
    }
  for (int j = 0; j < dim / 4; ++j) {
    __m512i key[B];
    for (int b = 0; b < B; ++b) {
      key[b] = _mm512_load_si512(keys[b] + 64 * j);
      prefetch(ahead[b] + 64 * j);
    }
    for (int r = 0; r < R; ++r) {
      const __m512i h = four(query_high + r * dim + 4 * j), l = four(query_low + r * dim + 4 * j);
      for (int b = 0; b < B; ++b) {
        high[r][b] = _mm512_dpbusd_epi32(high[r][b], key[b], h);
        low[r][b] = _mm512_dpbusd_epi32(low[r][b], key[b], l);
      }
    }
  }
  for (int b = 0; b < B; ++b) {
    prefetch(ahead[b] + 2 * kBlock * dim);
    const __m512 scale = scales16(reinterpret_cast<const uint16_t*>(keys[b] + 2 * kBlock * dim));
    for (int r = 0; r < R; ++r)
      _mm512_store_ps(&scores[r][column + kBlock * b],
                      _mm512_mul_ps(joined(high[r][b], low[r][b]), _mm512_mul_ps(scale, _mm512_set1_ps(by[r]))));
  }
}

// Weights of R rows times 16 * C columns of the values. The values of the next round are fetched meanwhile.
template <int R, int C>
inline void values_some(const Round& round, const uint8_t (*weights_high)[kRound], const uint8_t (*weights_low)[kRound],
                        const float* scale, const float* by, int dim, int column, float* out) {
  __m512i high[R][C], low[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) high[r][c] = low[r][c] = _mm512_setzero_si512();
  for (int b = 0; b < round.blocks; ++b) {
    const uint8_t* values = round.block[b] + kBlock * dim + 4 * column;
    const uint8_t* next = round.ahead[b] + kBlock * dim + 4 * column;
    for (int quad = 0; quad < kBlock / 4; ++quad) {
      __m512i value[C];
      for (int c = 0; c < C; ++c) prefetch(next + (quad * dim + c * 16) * 4);
      for (int c = 0; c < C; ++c) value[c] = _mm512_load_si512(values + (quad * dim + c * 16) * 4);
      for (int r = 0; r < R; ++r) {
        const int at = b * kBlock + 4 * quad;
        const __m512i h = four(weights_high[r] + at), l = four(weights_low[r] + at);
        for (int c = 0; c < C; ++c) {
          high[r][c] = _mm512_dpbusd_epi32(high[r][c], h, value[c]);
          low[r][c] = _mm512_dpbusd_epi32(low[r][c], l, value[c]);
        }
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) {
      float* to = out + r * dim + column + 16 * c;
      const __m512 before = _mm512_mul_ps(_mm512_load_ps(to), _mm512_set1_ps(by[r]));
      _mm512_store_ps(to, _mm512_fmadd_ps(joined(high[r][c], low[r][c]), _mm512_set1_ps(scale[r]), before));
    }
}

#else
inline Floats scales8(const uint16_t* from) {
  typedef uint16_t Halves __attribute__((vector_size(16)));
  return (Floats)(__builtin_convertvector(load<Halves>(from), Words) << 16);
}

template <int R>
inline void scores_plain(const uint8_t* key, const float* query, int dim, float (*scores)[kRound + kBlock],
                         int column) {
  const uint16_t* scales = reinterpret_cast<const uint16_t*>(key + 2 * kBlock * dim);
  for (int t = 0; t < kBlock; t += kLanes) {
    Floats sum[R];
    for (int r = 0; r < R; ++r) sum[r] = all(0.f);
    for (int i = 0; i < dim; i += 4) {
      const Words keys = load<Words>(key + i * kBlock + 4 * t) ^ 0x80808080u;
      const Floats k[4] = {signed_byte<0>(keys), signed_byte<1>(keys), signed_byte<2>(keys), signed_byte<3>(keys)};
      for (int r = 0; r < R; ++r)
        for (int j = 0; j < 4; ++j) sum[r] = multiply_add(k[j], all(query[r * dim + i + j]), sum[r]);
    }
    for (int r = 0; r < R; ++r) store(&scores[r][column + t], sum[r] * scales8(scales + t));
  }
}

template <int R>
inline void values_plain(const Round& round, const float (*weights)[kRound + kBlock], const float* by, int dim,
                         float* out) {
  for (int i = 0; i < dim; i += kLanes) {
    Floats sum[R];
    for (int r = 0; r < R; ++r) sum[r] = load<Floats>(out + r * dim + i) * all(by[r]);
    for (int b = 0; b < round.blocks; ++b)
      for (int t = 0; t < kBlock; t += 4) {
        const Words values = load<Words>(round.block[b] + kBlock * dim + t * dim + 4 * i);
        const Floats v[4] = {signed_byte<0>(values), signed_byte<1>(values), signed_byte<2>(values),
                             signed_byte<3>(values)};
        for (int r = 0; r < R; ++r)
          for (int j = 0; j < 4; ++j) sum[r] = multiply_add(v[j], all(weights[r][b * kBlock + t + j]), sum[r]);
      }
    for (int r = 0; r < R; ++r) store(out + r * dim + i, sum[r]);
  }
}
#endif

}  // namespace int8

class Int8Kv {
 public:
  Int8Kv(int dim, const uint16_t* query, int rows, Scratch& scratch) : dim_(dim), rows_(rows), s_(scratch) {
    for (int r = 0; r < rows; ++r) {
      float* row = s_.query + r * dim;
      for (int i = 0; i < dim; ++i) row[i] = bf16_to_float(query[r * dim + i]);
#if OCTAVO_AVX512
      split_query(r, row);
#endif
    }
  }

#if OCTAVO_AVX512
  void score(const Round& round) const {
    for (int b = 0; b < round.blocks; b += 2)
      for (int r = 0; r < rows_; r += 4) switch (rows_ - r) {
          case 1: score_rows<1>(round, b, r); break;
          case 2: score_rows<2>(round, b, r); break;
          case 3: score_rows<3>(round, b, r); break;
          default: score_rows<4>(round, b, r);
        }
  }

  void add(const Round& round, State& state) const {
    load_value_scales(round);
    float by[kRows], scale[kRows];
    for (int r = 0; r < rows_; ++r) weigh(round, r, state, by[r], scale[r]);
    for (int column = 0; column < dim_; column += 64) switch ((dim_ - column) / 16) {
        case 1: add_columns<1>(round, by, scale, column, state.out); break;
        case 2: add_columns<2>(round, by, scale, column, state.out); break;
        case 3: add_columns<3>(round, by, scale, column, state.out); break;
        default: add_columns<4>(round, by, scale, column, state.out);
      }
  }

 private:
  void split_query(int r, const float* row) {
    constexpr float kMost = 127 * 256;
    const float top = largest_magnitude(row, dim_);
    const Floats by = all(top > 0.f ? kMost / top : 0.f);
    Ints sum{};
    for (int i = 0; i < dim_; i += kLanes) {
      const Ints whole = nearest(load<Floats>(row + i) * by), high = (whole + 128) >> 8;
      store_bytes(s_.query_high + r * dim_ + i, high);
      store_bytes(s_.query_low + r * dim_ + i, whole - (high << 8));
      sum += whole;
    }
    int32_t whole_sum = 0;
    for (int i = 0; i < kLanes; ++i) whole_sum += sum[i];
    minus_[r] = -128 * whole_sum;
    query_scale_[r] = top / kMost;
  }

  template <int R>
  void score_rows(const Round& round, int b, int r) const {
    int8::scores_some<R, 2>(round.block + b, round.ahead + b, s_.query_high + r * dim_, s_.query_low + r * dim_,
                            minus_ + r, query_scale_ + r, dim_, s_.scores + r, b * kBlock);
  }

  void load_value_scales(const Round& round) const {
    for (int b = 0; b < round.blocks; ++b) {
      const uint16_t* from = reinterpret_cast<const uint16_t*>(round.block[b] + 2 * kBlock * dim_) + kBlock;
      const __mmask16 written = b + 1 < round.blocks ? 0xffff : (1u << round.written) - 1;  // of others: zero
      _mm512_store_ps(s_.value_scales + b * kBlock, _mm512_maskz_mov_ps(written, int8::scales16(from)));
    }
  }

  // A row's softmax; its weights times their values' scales become whole numbers up to 65535, whose scale is `scale`.
  void weigh(const Round& round, int r, State& state, float& by, float& scale) const {
    constexpr float kMost = 65535.f;
    const int tokens = round.blocks * kBlock;
    float* x = s_.scores[r];
    __m512 most = _mm512_setzero_ps();
    by = softmax_round(x, tokens, state.top[r], state.total[r], [&](int t, __m512 p) {
      const __m512 w = _mm512_mul_ps(p, _mm512_load_ps(s_.value_scales + t));
      most = _mm512_max_ps(most, w);
      _mm512_store_ps(x + t, w);
    });
    const float top = _mm512_reduce_max_ps(most);
    const __m512 inverse = _mm512_set1_ps(top > 1e-30f ? kMost / top : 0.f);
    scale = top / kMost;
    for (int t = 0; t < tokens; t += 16) {
      const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(x + t), inverse));
      _mm_store_si128(reinterpret_cast<__m128i*>(s_.weights_low[r] + t), _mm512_cvtepi32_epi8(whole));
      _mm_store_si128(reinterpret_cast<__m128i*>(s_.weights_high[r] + t),
                      _mm512_cvtepi32_epi8(_mm512_srli_epi32(whole, 8)));
    }
  }

  template <int C>
  void add_columns(const Round& round, const float* by, const float* scale, int column, float* out) const {
    int r = 0;
    for (; r + 3 <= rows_; r += 3) add_rows<3, C>(round, r, by, scale, column, out);
    if (rows_ - r == 2) add_rows<2, C>(round, r, by, scale, column, out);
    if (rows_ - r == 1) add_rows<1, C>(round, r, by, scale, column, out);
  }

  template <int R, int C>
  void add_rows(const Round& round, int r, const float* by, const float* scale, int column, float* out) const {
    int8::values_some<R, C>(round, s_.weights_high + r, s_.weights_low + r, scale + r, by + r, dim_, column,
                            out + r * dim_);
  }

  int32_t minus_[kRows] = {};
  float query_scale_[kRows] = {};
#else
  void score(const Round& round) const {
    for (int b = 0; b < round.blocks; ++b)
      for (int r = 0; r < rows_; r += 4)
        int8::scores_plain<4>(round.block[b], s_.query + r * dim_, dim_, s_.scores + r, b * kBlock);
  }

  void add(const Round& round, State& state) const {
    for (int b = 0; b < round.blocks; ++b) {
      const uint16_t* from = reinterpret_cast<const uint16_t*>(round.block[b] + 2 * kBlock * dim_) + kBlock;
      for (int t = 0; t < kBlock; ++t)
        s_.value_scales[b * kBlock + t] = b + 1 < round.blocks || t < round.written ? bf16_to_float(from[t]) : 0.f;
    }
    float by[kRows];
    for (int r = 0; r < rows_; ++r) {
      float* x = s_.scores[r];
      by[r] = softmax_round(x, round.blocks * kBlock, state.top[r], state.total[r],
                            [&](int t, Floats p) { store(x + t, p * load<Floats>(s_.value_scales + t)); });
    }
    int r = 0;
    for (; r + 4 <= rows_; r += 4) int8::values_plain<4>(round, s_.scores + r, by + r, dim_, state.out + r * dim_);
    for (; r < rows_; ++r) int8::values_plain<1>(round, s_.scores + r, by + r, dim_, state.out + r * dim_);
  }

 private:
#endif
  const int dim_;
  const int rows_;
  Scratch& s_;
};

}  // namespace octavo
