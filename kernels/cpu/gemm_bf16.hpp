// Matrix products of bf16 weights with bf16 activations, summed in float.
#pragma once

#include "tiles.hpp"

namespace octavo {

// 32 floats to bf16, rounded to nearest even.
inline void round_group(const float* x, uint16_t* to) {
#if OCTAVO_AVX512
  const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x));
  std::memcpy(to, &both, sizeof both);
#else
  for (int i = 0; i < kGroup; ++i) to[i] = float_to_bf16(x[i]);
#endif
}

// out[r][0..15] = products of R rows, beginning at row0, with the 16 outputs of one row of tiles. Each output is one
// chain of sums over the inputs in order, however many rows there are.
#if OCTAVO_AVX512
template <int R>
inline void gemm_bf16_rows(const uint8_t* tile, const Activations& x, int row0, float* out) {
  __m512 total[R];
  for (int r = 0; r < R; ++r) total[r] = _mm512_setzero_ps();
  const uint16_t* rows = x.bf16 + int64_t(row0) * kGroup;
  for (int i = 0; i < x.inputs; i += kGroup, tile += tile_bytes(16), rows += int64_t(x.stride) * kGroup) {
    for (int c = 0; c < kGroup / 2; ++c) {
      const __m512bh w = (__m512bh)_mm512_load_si512(tile + 64 * c);
      _mm_prefetch(reinterpret_cast<const char*>(tile + 64 * c + 4096), _MM_HINT_T0);
      for (int r = 0; r < R; ++r) {
        const __m512i pair = _mm512_set1_epi32(load<int32_t>(rows + r * kGroup + 2 * c));
        total[r] = _mm512_dpbf16_ps(total[r], w, (__m512bh)pair);
      }
    }
  }
  for (int r = 0; r < R; ++r) _mm512_storeu_ps(out + r * kOut, total[r]);
}
#else
template <int R>
inline void gemm_bf16_rows(const uint8_t* tile, const Activations& x, int row0, float* out) {
  constexpr int kTogether = R % 4 == 0 ? 4 : R % 3 == 0 ? 3 : R;  // sums that fit into registers beside the weights
  std::memset(out, 0, sizeof(float) * R * kOut);
  const uint16_t* rows = x.bf16 + int64_t(row0) * kGroup;
  for (int i = 0; i < x.inputs; i += kGroup, tile += tile_bytes(16), rows += int64_t(x.stride) * kGroup) {
    for (int r0 = 0; r0 < R; r0 += kTogether) {
      Floats total[kTogether][2];
      std::memcpy(total, out + r0 * kOut, sizeof total);
      for (int c = 0; c < kGroup / 2; ++c) {
        const Words low = load<Words>(tile + 64 * c), high = load<Words>(tile + 64 * c + 32);
        const Floats w[2][2] = {{firsts(low), firsts(high)}, {seconds(low), seconds(high)}};
        for (int r = 0; r < kTogether; ++r) {
          const Words pair = same(load<uint32_t>(rows + (r0 + r) * kGroup + 2 * c));
          for (int half = 0; half < 2; ++half) {
            total[r][half] = multiply_add(w[0][half], firsts(pair), total[r][half]);
            total[r][half] = multiply_add(w[1][half], seconds(pair), total[r][half]);
          }
        }
      }
      std::memcpy(out + r0 * kOut, total, sizeof total);
    }
  }
}
#endif

inline void gemm_bf16(const uint8_t* tile, const Activations& x, int row0, int rows, float* out) {
  with_rows(rows, [&](auto count) { gemm_bf16_rows<count>(tile, x, row0, out); });
}

}  // namespace octavo
