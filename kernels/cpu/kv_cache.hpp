// How keys and values lie in a block, in bf16 or in int8, and how they are written.
//
// A block holds 16 tokens. For one KV head it is, one after the other:
// - bf16: the keys as [dim / 2][16 tokens][2], so that one dot-product instruction serves 16 tokens and no sum runs
//   across lanes; the values as [8 pairs of tokens][dim][2];
// - int8: the keys as [dim / 4][16 tokens][4], each plus 128, since vpdpbusd multiplies unsigned by signed; the values,
//   signed, as [4 quads of tokens][dim][4]; then the scales of 16 keys and of 16 values in bf16, one cache line. A row
//   is its scale times whole numbers from -127 to 127; scales are rounded up, so that none is cut.
// kernels/cpu/kv_layout.py says the same to Python.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "vector.hpp"

namespace octavo {

constexpr int kBlock = 16;  // tokens of a block
constexpr int kMaxHead = 256;

// The least bf16 that is not below a positive value.
inline uint16_t bf16_above(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0xffffu) >> 16);
}

struct Cache {
  uint8_t* data;  // [blocks][kv_heads][head_bytes] of one layer
  int kv_heads;
  int dim;
  bool int8;

  int64_t head_bytes() const { return static_cast<int64_t>(kBlock) * (int8 ? 2 * dim + 4 : 4 * dim); }
  uint8_t* head(int64_t block, int head) const { return data + (block * kv_heads + head) * head_bytes(); }

  void write(int64_t slot, int kv_head, const float* row, bool value) const {
    uint8_t* base = head(slot / kBlock, kv_head);
    const int t = static_cast<int>(slot % kBlock);
    if (int8) write_int8(base, t, row, value);
    else write_bf16(reinterpret_cast<uint16_t*>(base), t, row, value);
  }

 private:
  void write_bf16(uint16_t* base, int t, const float* row, bool value) const {
    if (!value) {
      for (int i = 0; i < dim; ++i) base[(i / 2) * 32 + 2 * t + (i & 1)] = float_to_bf16(row[i]);
    } else {
      base += static_cast<int64_t>(kBlock) * dim + (t / 2) * dim * 2 + (t & 1);
      for (int i = 0; i < dim; ++i) base[2 * i] = float_to_bf16(row[i]);
    }
  }

  void write_int8(uint8_t* base, int t, const float* row, bool value) const {
    const uint16_t scale = bf16_above(largest_magnitude(row, dim) / 127.f);
    const float by = scale > 0 ? 1.f / bf16_to_float(scale) : 0.f;
    uint8_t q[kMaxHead];
    for (int i = 0; i < dim; i += kLanes) store_bytes(q + i, nearest(load<Floats>(row + i) * all(by)));
    if (!value) {
      for (int i = 0; i < dim; ++i) q[i] ^= 0x80;  // plus 128
      for (int i = 0; i < dim; i += 4) std::memcpy(base + i * kBlock + 4 * t, q + i, 4);
    } else {
      uint8_t* to = base + kBlock * dim + (t / 4) * dim * 4 + (t & 3);
      for (int i = 0; i < dim; ++i) to[4 * i] = q[i];
    }
    std::memcpy(base + 2 * kBlock * dim + 2 * ((value ? kBlock : 0) + t), &scale, 2);
  }
};

}  // namespace octavo
