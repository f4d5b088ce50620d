// Eight floats at a time in the compiler's own vector types: AVX2 where there is any, else whatever the target has.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace octavo {

typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));
typedef uint32_t Words __attribute__((vector_size(32)));

constexpr int kLanes = 8;

inline Floats all(float x) { return Floats{x, x, x, x, x, x, x, x}; }
inline Words same(uint32_t x) { return Words{x, x, x, x, x, x, x, x}; }

template <class T>
inline T load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline void store(float* to, Floats value) { std::memcpy(to, &value, sizeof value); }

// The contraction is asked for where the machine has it; elsewhere the compiler must not invent one (see build.py).
inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX2__) && defined(__FMA__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

// The first and the second of eight pairs of bf16.
inline Floats firsts(Words pairs) { return (Floats)(pairs << 16); }
inline Floats seconds(Words pairs) { return (Floats)(pairs & 0xffff0000u); }

// Byte J of eight words, with its sign.
template <int J>
inline Floats signed_byte(Words words) {
  return __builtin_convertvector((Ints)(words << (24 - 8 * J)) >> 24, Floats);
}

// The nearest whole numbers, halves to even, for magnitudes below 2^22.
inline Ints nearest(Floats x) {
  const Floats magic = all(12582912.f);
  return (Ints)(x + magic) - (Ints)magic;
}

// The low bytes of eight numbers, side by side.
inline void store_bytes(void* to, Ints values) {
  typedef int8_t Bytes __attribute__((vector_size(8)));
  const Bytes bytes = __builtin_convertvector(values, Bytes);
  std::memcpy(to, &bytes, sizeof bytes);
}

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

// 2^x for x <= 126 (below -126: 0): the whole part goes into the exponent, the rest, |f| <= 1/2, through a polynomial
// with a relative error below 2e-7.
inline Floats exp2(Floats x) {
  const Floats magic = all(12582912.f);  // adding it rounds to a whole number
  const Ints tiny = x < all(-126.f);
  x = tiny ? all(-126.f) : x;
  const Floats whole = (x + magic) - magic;
  const Floats f = x - whole;
  Floats p = all(1.5403530393381608e-4f);
  p = multiply_add(p, f, all(1.3333558146428443e-3f));
  p = multiply_add(p, f, all(9.6181291076284772e-3f));
  p = multiply_add(p, f, all(5.5504108664821580e-2f));
  p = multiply_add(p, f, all(2.4022650695910072e-1f));
  p = multiply_add(p, f, all(6.9314718055994531e-1f));
  p = multiply_add(p, f, all(1.f));
  const Ints power = (__builtin_convertvector(whole, Ints) + 127) << 23;
  const Floats value = p * (Floats)power;
  return tiny ? all(0.f) : value;
}

inline float largest(Floats x) {
  float most = x[0];
  for (int i = 1; i < kLanes; ++i) most = x[i] > most ? x[i] : most;
  return most;
}

// Of a row whose length is a multiple of 8.
inline float largest_magnitude(const float* row, int count) {
  Floats most = all(0.f);
  for (int i = 0; i < count; i += kLanes) {
    const Floats x = (Floats)(load<Words>(row + i) & 0x7fffffffu);
    most = x > most ? x : most;
  }
  return largest(most);
}

inline float total(Floats x) {
  float sum = x[0];
  for (int i = 1; i < kLanes; ++i) sum += x[i];
  return sum;
}

}  // namespace octavo
