// Paged attention of a tile: up to 16 query rows that attend to the same KV head of the same blocks.
//
// It walks rounds of 8 blocks counted from the first block of the sequence, whatever its neighbours do, so a row's
// result does not depend on its batch: not on the chunking, nor on whether a shared prefix was done for a whole group
// first, as long as prefixes end on a round. Queries come in bf16, already multiplied by scale * log2(e). The products
// themselves are in attention_bf16.hpp and attention_int8.hpp.
#pragma once

#include "attention_bf16.hpp"
#include "attention_int8.hpp"

namespace octavo {

template <class Kv>
inline void attend_in(const Cache& cache, int kv_head, const int32_t* table, int first_block, int last_block,
                      const uint16_t* query, int rows, const int32_t* limit, int written, State& state, Scratch& s) {
  const Kv kv(cache.dim, query, rows, s);
  const int shortest = *std::min_element(limit, limit + rows);
  Round round;
  for (int begin = first_block; begin < last_block; begin += kRoundBlocks) {
    round.blocks = std::min(kRoundBlocks, last_block - begin);
    for (int b = 0; b < round.blocks; ++b) {
      round.block[b] = cache.head(table[begin + b], kv_head);
      const int next = begin + kRoundBlocks + b;
      round.ahead[b] = next < last_block ? cache.head(table[next], kv_head) : round.block[b];
    }
    round.block[round.blocks] = round.block[round.blocks - 1];
    round.ahead[round.blocks] = round.ahead[round.blocks - 1];
    kv.score(round);

    const int end = (begin + round.blocks) * kBlock;
    if (end > shortest) {
      for (int r = 0; r < rows; ++r)
        for (int t = std::max(0, limit[r] - begin * kBlock); t < round.blocks * kBlock; ++t)
          s.scores[r][t] = -std::numeric_limits<float>::infinity();
    }
    round.written = std::min(kBlock, std::max(0, written - (end - kBlock)));
    kv.add(round, state);
  }
}

// Attends `rows` queries ([16][dim] bf16; all 16 rows must be readable) to the blocks
// [first_block, last_block) of a table. limit[r]: how many tokens row r may see; written: how many tokens of the
// sequence are in the cache at all: nothing behind them may reach a sum. first_block must be a multiple of 8.
inline void attend(const Cache& cache, int kv_head, const int32_t* table, int first_block, int last_block,
                   const uint16_t* query, int rows, const int32_t* limit, int written, State& state, Scratch& s) {
  const auto walk = cache.int8 ? attend_in<Int8Kv> : attend_in<Bf16Kv>;
  walk(cache, kv_head, table, first_block, last_block, query, rows, limit, written, state, s);
}

}  // namespace octavo
