// Paged attention over bf16 keys and values, with an online softmax in base 2.
//
// A block holds 16 tokens. For one KV head it is 2 * 16 * head_dim bf16: the keys as [head_dim / 2][16 tokens][2], so
// that one dot-product instruction serves 16 tokens and no sum runs across lanes; then the values as
// [8 pairs of tokens][head_dim][2]. Queries come in bf16, already multiplied by scale * log2(e).
//
// A tile is up to 16 query rows that attend to the same KV head of the same blocks. It walks rounds of 8 blocks counted
// from the first block of the sequence, whatever its neighbours do, so a row's result does not depend on its batch: not
// on the chunking, nor on whether a shared prefix was done for a whole group first, as long as prefixes end on a round.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "gemm.hpp"

namespace octavo {

constexpr int kBlock = 16;         // tokens of a block
constexpr int kRound = 8 * kBlock; // tokens of a round
constexpr int kMaxHead = 256;

inline float bf16_to_float(uint16_t h) {
  const uint32_t bits = static_cast<uint32_t>(h) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint16_t float_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;  // stays NaN
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// What an online softmax carries between rounds, for up to 16 rows.
struct State {
  float top[kRows];
  float total[kRows];
  alignas(64) float out[kRows * kMaxHead];

  void clear(int rows, int dim) {
    for (int r = 0; r < rows; ++r) {
      top[r] = -std::numeric_limits<float>::infinity();
      total[r] = 0.f;
    }
    std::memset(out, 0, sizeof(float) * rows * dim);
  }
};

struct Scratch {
  alignas(64) float scores[kRows][kRound + kBlock];
  alignas(64) uint16_t weights[kRows][kRound];
  alignas(64) uint16_t tail[kBlock * kMaxHead];
};

#if OCTAVO_AVX512
inline __m512 exp2_ps(__m512 x) {
  // 2^x = 2^round(x) * 2^f, |f| <= 1/2, the latter by a polynomial (relative error below 2e-7).
  x = _mm512_max_ps(x, _mm512_set1_ps(-150.f));
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, whole);
  __m512 p = _mm512_set1_ps(1.5403530393381608e-4f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.3333558146428443e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.6181291076284772e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5504108664821580e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022650695910072e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314718055994531e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.f));
  return _mm512_scalef_ps(p, whole);
}

// Scores of R rows with B blocks. While it computes, it fetches the blocks of the next round line by line.
template <int R, int B>
inline void scores_some(const uint16_t* const* keys, const uint16_t* const* ahead, const uint16_t* query, int dim,
                        float (*scores)[kRound + kBlock], int column) {
  __m512 sum[R][B];
  for (int r = 0; r < R; ++r)
    for (int b = 0; b < B; ++b) sum[r][b] = _mm512_setzero_ps();
  for (int j = 0; j < dim / 2; ++j) {
    __m512bh key[B];
    for (int b = 0; b < B; ++b) {
      key[b] = (__m512bh)_mm512_load_si512(keys[b] + 32 * j);
      const char* line = reinterpret_cast<const char*>(ahead[b]) + 128 * j;
      _mm_prefetch(line, _MM_HINT_T0);
      _mm_prefetch(line + 64, _MM_HINT_T0);
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

template <int C, int R>
inline void values_some(const uint16_t* const* values, int blocks, const uint16_t (*weights)[kRound], const float* by,
                        float* out) {
  __m512 sum[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c)
      sum[r][c] = _mm512_mul_ps(_mm512_load_ps(out + (r * C + c) * 16), _mm512_set1_ps(by[r]));
  for (int b = 0; b < blocks; ++b) {
    for (int pair = 0; pair < kBlock / 2; ++pair) {
      __m512bh value[C];
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
inline void values_rows(const uint16_t* const* values, int blocks, Scratch& s, const float* by, int rows, float* out) {
  constexpr int kAtOnce = C <= 4 ? 4 : C <= 8 ? 2 : 1;
  int r = 0;
  for (; r + kAtOnce <= rows; r += kAtOnce)
    values_some<C, kAtOnce>(values, blocks, s.weights + r, by + r, out + r * C * 16);
  if constexpr (kAtOnce == 4) {
    if (rows - r == 3) return values_some<C, 3>(values, blocks, s.weights + r, by + r, out + r * C * 16);
    if (rows - r == 2) return values_some<C, 2>(values, blocks, s.weights + r, by + r, out + r * C * 16);
  }
  for (; r < rows; ++r) values_some<C, 1>(values, blocks, s.weights + r, by + r, out + r * C * 16);
}

inline bool fast_dim(int dim) { return dim == 32 || dim == 64 || dim == 80 || dim == 96 || dim == 128; }
#endif

// The same two products without AVX-512's bf16 instructions: pairs become floats by a shift and by a mask.
template <int R>
inline void scores_plain(const uint16_t* key, const uint16_t* query, int dim, float (*scores)[kRound + kBlock], int column) {
  Floats sum[R][2];
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = all(0.f);
  for (int j = 0; j < dim / 2; ++j) {
    const Words left = load<Words>(key + 32 * j), right = load<Words>(key + 32 * j + 16);
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

// One round's softmax for one row: scores become weights in bf16. Returns the factor for what was summed before.
inline float softmax_round(Scratch& s, int r, int tokens, float& top, float& total) {
  float* x = s.scores[r];
  uint16_t* w = s.weights[r];
  const float old = top;
#if OCTAVO_AVX512
  __m512 most = _mm512_load_ps(x);
  for (int t = 16; t < tokens; t += 16) most = _mm512_max_ps(most, _mm512_load_ps(x + t));
  top = std::max(old, _mm512_reduce_max_ps(most));
  if (top == -std::numeric_limits<float>::infinity()) {
    std::memset(w, 0, sizeof(uint16_t) * tokens);
    return 1.f;
  }
  const __m512 zero = _mm512_set1_ps(top);
  __m512 sum = _mm512_setzero_ps();
  for (int t = 0; t < tokens; t += 16) {
    const __m512 p = exp2_ps(_mm512_sub_ps(_mm512_load_ps(x + t), zero));
    sum = _mm512_add_ps(sum, p);
    _mm256_store_si256(reinterpret_cast<__m256i*>(w + t), (__m256i)_mm512_cvtneps_pbh(p));
  }
  const float fresh = _mm512_reduce_add_ps(sum);
#else
  Floats most = load<Floats>(x);
  for (int t = kLanes; t < tokens; t += kLanes) {
    const Floats more = load<Floats>(x + t);
    most = more > most ? more : most;
  }
  top = std::max(old, largest(most));
  if (top == -std::numeric_limits<float>::infinity()) {
    std::memset(w, 0, sizeof(uint16_t) * tokens);
    return 1.f;
  }
  Floats sum = all(0.f);
  for (int t = 0; t < tokens; t += kLanes) {
    const Floats p = exp2(load<Floats>(x + t) - all(top));
    sum += p;
    for (int i = 0; i < kLanes; ++i) w[t + i] = float_to_bf16(p[i]);
  }
  const float fresh = octavo::total(sum);
#endif
  const float by = old == top ? 1.f : std::exp2(old - top);
  total = total * by + fresh;
  return by;
}

struct Cache {
  uint16_t* data;   // [blocks][kv_heads][2][16 * dim] of one layer
  int kv_heads;
  int dim;

  int64_t head_size() const { return 2 * static_cast<int64_t>(kBlock) * dim; }
  uint16_t* head(int64_t block, int head) const { return data + (block * kv_heads + head) * head_size(); }

  void write(int64_t slot, int kv_head, const float* row, bool value) const {
    uint16_t* base = head(slot / kBlock, kv_head);
    const int t = static_cast<int>(slot % kBlock);
    if (!value) {
      for (int i = 0; i < dim; ++i) base[(i / 2) * 32 + 2 * t + (i & 1)] = float_to_bf16(row[i]);
    } else {
      base += static_cast<int64_t>(kBlock) * dim + (t / 2) * dim * 2 + (t & 1);
      for (int i = 0; i < dim; ++i) base[2 * i] = float_to_bf16(row[i]);
    }
  }
};

// Attends `rows` queries ([16][dim] bf16; all 16 rows must be readable) to the blocks
// [first_block, last_block) of a table. limit[r]: how many tokens row r may see; written: how many tokens of the
// sequence are in the cache at all. first_block must be a multiple of 8.
inline void attend(const Cache& cache, int kv_head, const int32_t* table, int first_block, int last_block,
                   const uint16_t* query, int rows, const int32_t* limit, int written, State& state, Scratch& s) {
  const int dim = cache.dim;
  int shortest = limit[0];
  for (int r = 1; r < rows; ++r) shortest = std::min(shortest, limit[r]);
  const uint16_t* keys[9];
  const uint16_t* values[8];
  const uint16_t* ahead[9];
  float by[kRows];
  for (int begin = first_block; begin < last_block; begin += 8) {
    const int blocks = std::min(8, last_block - begin);
    const int tokens = blocks * kBlock;
    for (int b = 0; b < blocks; ++b) {
      keys[b] = cache.head(table[begin + b], kv_head);
      values[b] = keys[b] + static_cast<int64_t>(kBlock) * dim;
      const int next = begin + 8 + b;
      ahead[b] = next < last_block ? cache.head(table[next], kv_head) : keys[b];
    }
    keys[blocks] = keys[blocks - 1];
    ahead[blocks] = ahead[blocks - 1];
#if OCTAVO_AVX512
    if (fast_dim(dim)) {
      for (int b = 0; b < blocks; b += 2) {
        const int column = b * kBlock;
        switch (rows) {
          case 1: scores_some<1, 2>(keys + b, ahead + b, query, dim, s.scores, column); break;
          case 2: scores_some<2, 2>(keys + b, ahead + b, query, dim, s.scores, column); break;
          case 3: scores_some<3, 2>(keys + b, ahead + b, query, dim, s.scores, column); break;
          case 4: scores_some<4, 2>(keys + b, ahead + b, query, dim, s.scores, column); break;
          default:
            for (int r = 0; r < rows; r += 8)
              scores_some<8, 2>(keys + b, ahead + b, query + r * dim, dim, s.scores + r, column);
        }
      }
    } else
#endif
      for (int b = 0; b < blocks; ++b)
        for (int r = 0; r < rows; r += 4) scores_plain<4>(keys[b], query + r * dim, dim, s.scores + r, b * kBlock);

    const int end = (begin + blocks) * kBlock;
    if (end > shortest) {
      for (int r = 0; r < rows; ++r)
        for (int t = std::max(0, limit[r] - begin * kBlock); t < tokens; ++t)
          s.scores[r][t] = -std::numeric_limits<float>::infinity();
    }
    if (end > written) {  // nothing unwritten may reach a sum: zero times NaN is NaN
      const int good = std::max(0, written - (end - kBlock));
      const uint16_t* from = values[blocks - 1];
      for (int pair = 0; pair < kBlock / 2; ++pair)
        for (int i = 0; i < dim; ++i)
          for (int side = 0; side < 2; ++side) {
            const int at = (pair * dim + i) * 2 + side;
            s.tail[at] = 2 * pair + side < good ? from[at] : 0;
          }
      values[blocks - 1] = s.tail;
    }
    for (int r = 0; r < rows; ++r) by[r] = softmax_round(s, r, tokens, state.top[r], state.total[r]);
#if OCTAVO_AVX512
    switch (dim) {
      case 32: values_rows<2>(values, blocks, s, by, rows, state.out); continue;
      case 64: values_rows<4>(values, blocks, s, by, rows, state.out); continue;
      case 80: values_rows<5>(values, blocks, s, by, rows, state.out); continue;
      case 96: values_rows<6>(values, blocks, s, by, rows, state.out); continue;
      case 128: values_rows<8>(values, blocks, s, by, rows, state.out); continue;
      default: break;
    }
#endif
    int r = 0;
    for (; r + 4 <= rows; r += 4) values_plain<4>(values, blocks, s.weights + r, by + r, dim, state.out + r * dim);
    for (; r < rows; ++r) values_plain<1>(values, blocks, s.weights + r, by + r, dim, state.out + r * dim);
  }
}

}  // namespace octavo
