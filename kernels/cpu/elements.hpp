// The number types of activations and caches, read and written as eight floats at a time or one.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "levels.hpp"
#include "vector.hpp"

namespace octavo {

constexpr int kMaxDim = 1024;  // of a head

struct Bf16 {
  uint16_t bits;
};

struct Half {
  uint16_t bits;
};

typedef uint16_t Shorts __attribute__((vector_size(16)));

inline Floats load8(const float* from) { return load<Floats>(from); }
inline Floats load8(const Bf16* from) { return (Floats)(__builtin_convertvector(load<Shorts>(from), Words) << 16); }
inline Floats load8(const Half* from) {
#if defined(__F16C__)
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  Floats value;
  for (int i = 0; i < kLanes; ++i) {
    _Float16 one;
    std::memcpy(&one, from + i, 2);
    value[i] = static_cast<float>(one);
  }
  return value;
#endif
}

inline void store8(float* to, Floats value) { store(to, value); }
inline void store8(Bf16* to, Floats value) {
#if OCTAVO_AVX512
  const __m128bh low = _mm256_cvtneps_pbh((__m256)value);
#else
  const Words bits = (Words)value;
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  // A NaN stays one: rounding up its last bits could carry into the sign.
  const Words kept = (Words)(value != value) ? bits >> 16 | 64u : rounded;
  const Shorts low = __builtin_convertvector(kept, Shorts);
#endif
  std::memcpy(to, &low, sizeof low);
}
inline void store8(Half* to, Floats value) {
#if defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kLanes; ++i) {
    const _Float16 one = static_cast<_Float16>(value[i]);
    std::memcpy(to + i, &one, 2);
  }
#endif
}

// The last few of a row: fewer than eight.
template <class T>
inline Floats load_some(const T* from, int count) {
  T part[kLanes] = {};
  std::memcpy(part, from, sizeof(T) * count);
  return load8(part);
}

template <class T>
inline void store_some(T* to, Floats value, int count) {
  T part[kLanes];
  store8(part, value);
  std::memcpy(to, part, sizeof(T) * count);
}

inline Floats capped(Floats x, float most) { return x > all(most) ? all(most) : x; }

// 1 / (1 + e^-x), 0 where e^-x would overflow.
inline Floats sigmoid(Floats x) {
  const Floats value = all(1.f) / (all(1.f) + exp2(capped(x * all(-1.44269504f), 126.f)));
  return x < all(-87.f) ? all(0.f) : value;
}

inline Floats tanh(Floats x) { return all(1.f) - all(2.f) / (all(1.f) + exp2(capped(x * all(2.88539008f), 126.f))); }

}  // namespace octavo
