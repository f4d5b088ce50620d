// The product of a matrix in any form with rows of activations. The result of a row does not depend on which rows are
// computed beside it.
#pragma once

#include "gemm_bf16.hpp"
#include "gemm_low_bit.hpp"

namespace octavo {

// Products of at most 16 rows with the outputs [16 * tile, 16 * tile + 16). The buffers behind x must have room for
// rows rounded up to 16; out is [16][16].
inline void gemm(const Weight& w, int tile, const Activations& x, int row0, int rows, float* out) {
  const uint8_t* first = w.row_of_tiles(tile);
  if (w.bits == 4) gemm_low_bit<4>(first, x, row0, rows, out);
  else if (w.bits == 8) gemm_low_bit<8>(first, x, row0, rows, out);
  else gemm_bf16(first, x, row0, rows, out);
}

}  // namespace octavo
