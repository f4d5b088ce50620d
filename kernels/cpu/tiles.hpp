// What a matrix product reads: a matrix as tiles of 16 outputs x 32 inputs, and rows of activations.
//
// A low-bit weight is scale * q + minimum, with unsigned q of 4 or 8 bits and the scales of groups of 32 inputs (GGUF's
// Q4_1; Q8_0 becomes q + 128 with minimum -128 * scale). Its tile, in the order in which it is read: the bytes of q
// (four inputs of one output side by side, as vpdpbusd wants them; with 4 bits, inputs 0..15 in the low nibbles and
// 16..31 in the high ones), then 16 scales and 16 minima in fp16. A tile of bf16 is [16 pairs of inputs][16 outputs][2],
// as vdpbf16ps wants them. Tiles of one group of 16 outputs lie one after the other.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "levels.hpp"
#include "vector.hpp"

namespace octavo {

constexpr int kOut = 16;    // outputs of a tile
constexpr int kGroup = 32;  // inputs of a tile; the group of a scale
constexpr int kRows = 16;   // rows that share the load of a tile

constexpr int tile_bytes(int bits) { return kOut * kGroup * bits / 8 + (bits < 16 ? 2 * kOut * 2 : 0); }

struct Weight {
  const uint8_t* tiles;  // [outputs / 16][inputs / 32] tiles
  int32_t bits;          // 4 or 8, or 16: bf16
  int32_t outputs;       // a multiple of 16; rows that pad the matrix give 0
  int32_t inputs;        // a multiple of 32

  const uint8_t* row_of_tiles(int tile) const {
    return tiles + static_cast<int64_t>(tile) * (inputs / kGroup) * tile_bytes(bits);
  }
};

// Rows of activations in the forms that somebody reads; the others are null. Low-bit weights read x = scale * a by
// groups of 32: a in high, or in 16 bits as 256 * high + low; low is null for the former. high and low: [group][stride]
// [32]; scale, and scale * sum(a) in sum: [group][stride]. Weights of bf16 read bf16: [group][stride][32]. Group by
// group, because what writes them has one group of many rows, and two threads should not write into one line of cache.
struct Activations {
  int8_t* high;
  int8_t* low;
  float* scale;
  float* sum;
  uint16_t* bf16;
  int inputs;
  int stride;
};

// Calls f with the number of rows as a constant, out of a handful for which the loops are unrolled. The rows beyond the
// live ones are computed and not used.
template <class F>
inline void with_rows(int rows, const F& f) {
  switch (rows) {
    case 1: return f(std::integral_constant<int, 1>());
    case 2: return f(std::integral_constant<int, 2>());
    case 3: return f(std::integral_constant<int, 3>());
    case 4: return f(std::integral_constant<int, 4>());
    case 5: case 6: return f(std::integral_constant<int, 6>());
    case 7: case 8: return f(std::integral_constant<int, 8>());
    case 9: case 10: case 11: case 12: return f(std::integral_constant<int, 12>());
    default: return f(std::integral_constant<int, 16>());
  }
}

inline float half_to_float(uint16_t h) {
#if defined(__F16C__)
  return _cvtsh_ss(h);
#else
  _Float16 value;
  std::memcpy(&value, &h, 2);
  return static_cast<float>(value);
#endif
}

// The weights of one output as floats, [inputs].
inline void read_row(const Weight& w, int output, float* to) {
  const uint8_t* tile = w.row_of_tiles(output / kOut);
  const int o = output % kOut;
  for (int i = 0; i < w.inputs; i += kGroup, tile += tile_bytes(w.bits)) {
    if (w.bits == 16) {
      uint16_t pair[2];
      for (int k = 0; k < kGroup; k += 2) {
        std::memcpy(pair, tile + 32 * k + 4 * o, 4);
        to[i + k] = bf16_to_float(pair[0]);
        to[i + k + 1] = bf16_to_float(pair[1]);
      }
      continue;
    }
    uint16_t tail[2 * kOut];
    std::memcpy(tail, tile + kOut * kGroup * w.bits / 8, sizeof tail);
    const float scale = half_to_float(tail[o]), minimum = half_to_float(tail[kOut + o]);
    for (int k = 0; k < kGroup; ++k) {
      const uint8_t byte = tile[64 * (w.bits == 4 ? k % 16 / 4 : k / 4) + 4 * o + k % 4];
      const int q = w.bits == 8 ? byte : k < 16 ? byte & 15 : byte >> 4;
      to[i + k] = scale * static_cast<float>(q) + minimum;
    }
  }
}

}  // namespace octavo
