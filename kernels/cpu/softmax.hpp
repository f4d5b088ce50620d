// The online softmax in base 2 between the two products of attention: what rows carry from round to round, and one
// round of it. Scores come already multiplied by log2(e).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "gemm.hpp"
#include "kv_cache.hpp"

namespace octavo {

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

#endif

// One round's softmax for one row: its scores become weights, which go to `emit(token, weights)` a vector at a time (16
// of them with AVX-512, else 8). Returns the factor for what was summed before.
template <class Emit>
inline float softmax_round(const float* x, int tokens, float& top, float& total, const Emit& emit) {
  const float old = top;
#if OCTAVO_AVX512
  __m512 most = _mm512_load_ps(x);
  for (int t = 16; t < tokens; t += 16) most = _mm512_max_ps(most, _mm512_load_ps(x + t));
  top = std::max(old, _mm512_reduce_max_ps(most));
  if (top == -std::numeric_limits<float>::infinity()) {
    for (int t = 0; t < tokens; t += 16) emit(t, _mm512_setzero_ps());
    return 1.f;
  }
  const __m512 zero = _mm512_set1_ps(top);
  __m512 sum = _mm512_setzero_ps();
  for (int t = 0; t < tokens; t += 16) {
    const __m512 p = exp2_ps(_mm512_sub_ps(_mm512_load_ps(x + t), zero));
    sum = _mm512_add_ps(sum, p);
    emit(t, p);
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
    for (int t = 0; t < tokens; t += kLanes) emit(t, all(0.f));
    return 1.f;
  }
  Floats sum = all(0.f);
  for (int t = 0; t < tokens; t += kLanes) {
    const Floats p = exp2(load<Floats>(x + t) - all(top));
    sum += p;
    emit(t, p);
  }
  const float fresh = octavo::total(sum);
#endif
  const float by = old == top ? 1.f : std::exp2(old - top);
  total = total * by + fresh;
  return by;
}

}  // namespace octavo
