// What Python hands over: a model once, and a batch for every step.
#pragma once

#include <cstdint>

#include "tiles.hpp"

namespace octavo {

// Mirrored field by field in kernels/cpu/decoder.py.
struct Layer {
  Weight qkv;      // rows: query heads, key heads, value heads
  Weight out;
  Weight gate_up;  // units of 64 rows: 32 of gate, then the same 32 of up
  Weight down;
  const float* qkv_bias;  // or null
  const float* norm_attention;
  const float* norm_mlp;
  const float* norm_query;  // per head, or null
  const float* norm_key;
  int32_t rotated;  // whether q and k are turned by their position
};

struct Config {
  int32_t layers, hidden, heads, kv_heads, head_dim, intermediate, vocabulary, max_tokens, max_rows, threads;
  int32_t kv_int8;  // whether keys and values are int8, else bf16
  float eps, scale;
  const Layer* layer;
  Weight head;
  const float* norm_final;
  const uint16_t* embedding;  // bf16 [vocabulary][hidden], or null: the head is read
  const float* cosine;        // [max_position][head_dim / 2]
  const float* sine;
};

struct Batch {
  int32_t tokens, sequences, groups, rows;
  int32_t threads;              // how many take part, 0: all
  const int32_t* ids;           // [tokens]
  const int32_t* positions;     // [tokens]
  const int64_t* slots;         // [tokens], -1: padding, nothing is written
  const int32_t* query_starts;  // [sequences + 1]
  const int32_t* lengths;       // [sequences], tokens in the cache after this step
  const int32_t* tables;        // [sequences][table_stride]
  int64_t table_stride;
  const int32_t* group_of;      // [sequences]: index of the group or -1; members have one query token
  const int32_t* group_blocks;  // [groups]: leading blocks that all members share, a multiple of 8
  const int32_t* row_tokens;    // [rows]: the tokens whose logits are wanted
  uint8_t* cache;               // [layers][blocks][kv_heads], each as in kv_cache.hpp
  int64_t layer_stride;         // bytes of one layer of the cache
  float* logits;                // [rows][vocabulary]
};

}  // namespace octavo
