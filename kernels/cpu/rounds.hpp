// What a tile of attention works on: a round of blocks at a time, and scratch memory of a thread.
#pragma once

#include "gemm.hpp"
#include "kv_cache.hpp"
#include "softmax.hpp"

namespace octavo {

constexpr int kRoundBlocks = 8;
constexpr int kRound = kRoundBlocks * kBlock;  // tokens of a round

// One KV head's part of up to 8 blocks. Products of scores take two blocks at a time, so an odd last one stands twice.
struct Round {
  int blocks;
  int written;  // slots of the last block that hold something
  const uint8_t* block[kRoundBlocks + 1];
  const uint8_t* ahead[kRoundBlocks + 1];  // blocks of the next round, to be fetched meanwhile
};

struct Scratch {
  alignas(64) float scores[kRows][kRound + kBlock];
  // of bf16
  alignas(64) uint16_t weights[kRows][kRound];
  alignas(64) uint16_t tail[kBlock * kMaxHead];
  // of int8
  alignas(64) int8_t query_high[kRows * kMaxHead];
  alignas(64) int8_t query_low[kRows * kMaxHead];
  alignas(64) float query[kRows * kMaxHead];
  alignas(64) uint8_t weights_high[kRows][kRound];
  alignas(64) uint8_t weights_low[kRows][kRound];
  alignas(64) float value_scales[kRound];
};

#if OCTAVO_AVX512
inline void prefetch(const uint8_t* line) { _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T0); }
#endif

}  // namespace octavo
