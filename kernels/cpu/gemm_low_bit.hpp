// Low-bit matrix products: unsigned 4- or 8-bit weights times int8 activations, both with scales by groups of 32.
//
//   sum_k w[o,k] x[k] = sum over groups: scale_w scale_x sum(q a) + minimum scale_x sum(a),
// where a is the int8 activation: one integer dot product and two multiply-adds a group.
//
// Rows may have 16 bits instead, as two int8 halves: the second costs one more dot product with weights that are in
// registers already. QKV and down, which mind 8 bits most, have them (model.hpp); what is lost is in docs/LOG.md.
#pragma once

#include <cmath>

#include "tiles.hpp"

namespace octavo {

// One group of 32 floats in 8 bits, at most 127, or in 16, at most 127 * 256. Without WIDE, low is not used.
template <bool WIDE>
inline void quantise_group(const float* x, int8_t* high, int8_t* low, float* scale, float* sum) {
  constexpr float kMost = WIDE ? 127.f * 256.f : 127.f;
#if OCTAVO_AVX512
  const __m512 part[2] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)};
  const float top = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(part[0]), _mm512_abs_ps(part[1])));
  const __m512 by = _mm512_set1_ps(top > 0.f ? kMost / top : 0.f);
  __m512i whole[2];
  for (int i = 0; i < 2; ++i) {
    whole[i] = _mm512_cvtps_epi32(_mm512_mul_ps(part[i], by));
    __m512i upper = whole[i];
    if constexpr (WIDE) {
      upper = _mm512_srai_epi32(_mm512_add_epi32(whole[i], _mm512_set1_epi32(128)), 8);
      const __m512i lower = _mm512_sub_epi32(whole[i], _mm512_slli_epi32(upper, 8));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(low + 16 * i), _mm512_cvtepi32_epi8(lower));
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(high + 16 * i), _mm512_cvtepi32_epi8(upper));
  }
  const int total = _mm512_reduce_add_epi32(_mm512_add_epi32(whole[0], whole[1]));
#else
  float top = 0.f;
  for (int i = 0; i < kGroup; ++i) top = std::fmax(top, std::fabs(x[i]));
  const float by = top > 0.f ? kMost / top : 0.f;
  int total = 0;
  for (int i = 0; i < kGroup; ++i) {
    const int whole = static_cast<int>(std::nearbyint(x[i] * by));
    const int upper = WIDE ? (whole + 128) >> 8 : whole;
    high[i] = static_cast<int8_t>(upper);
    if constexpr (WIDE) low[i] = static_cast<int8_t>(whole - upper * 256);
    total += whole;
  }
#endif
  *scale = top / kMost;
  *sum = *scale * static_cast<float>(total);
}

// out[r][0..15] = products of `rows` rows, beginning at row0, with the 16 outputs of one row of tiles. out is [rows][16].
#if OCTAVO_AVX512
template <int BITS, int R, bool WIDE>
inline void gemm_rows(const uint8_t* tile, const Activations& x, int row0, float* out) {
  const int groups = x.inputs / kGroup;
  __m512 total[R];
  for (int r = 0; r < R; ++r) total[r] = _mm512_setzero_ps();
  const __m512i low = _mm512_set1_epi8(15);
  for (int g = 0; g < groups; ++g, tile += tile_bytes(BITS)) {
    const int64_t first = static_cast<int64_t>(g) * x.stride + row0;
    __m512i w[8];
    if constexpr (BITS == 4) {
      for (int c = 0; c < 4; ++c) {
        const __m512i both = _mm512_load_si512(tile + 64 * c);
        w[c] = _mm512_and_si512(both, low);
        w[c + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
      }
      _mm_prefetch(reinterpret_cast<const char*>(tile + 1280), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(tile + 1344), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(tile + 1408), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(tile + 1472), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(tile + 1536), _MM_HINT_T0);
    } else {
      for (int c = 0; c < 8; ++c) w[c] = _mm512_load_si512(tile + 64 * c);
    }
    const uint8_t* tail = tile + kOut * kGroup * BITS / 8;
    const __m512 ws = _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(tail)));
    const __m512 wm = _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(tail + 32)));
    const auto dot = [&](const int8_t* from) {
      const int32_t* a = reinterpret_cast<const int32_t*>(from);
      __m512i sum = _mm512_setzero_si512(), other = sum;  // two chains: with one, its latency is what counts
      for (int c = 0; c < 4; ++c) {
        sum = _mm512_dpbusd_epi32(sum, w[c], _mm512_set1_epi32(a[c]));
        other = _mm512_dpbusd_epi32(other, w[c + 4], _mm512_set1_epi32(a[c + 4]));
      }
      return _mm512_add_epi32(sum, other);
    };
    for (int r = 0; r < R; ++r) {
      const int64_t group = first + r, at = group * kGroup;
      __m512i sum = dot(x.high + at);
      if constexpr (WIDE) sum = _mm512_add_epi32(_mm512_slli_epi32(sum, 8), dot(x.low + at));
      const __m512 by = _mm512_mul_ps(ws, _mm512_set1_ps(x.scale[group]));
      total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), by, total[r]);
      total[r] = _mm512_fmadd_ps(wm, _mm512_set1_ps(x.sum[group]), total[r]);
    }
  }
  for (int r = 0; r < R; ++r) _mm512_storeu_ps(out + r * kOut, total[r]);
}
#elif OCTAVO_AVX2
template <int BITS, int R, bool WIDE>
inline void gemm_rows(const uint8_t* tile, const Activations& x, int row0, float* out) {
  const int groups = x.inputs / kGroup;
  const __m256i low = _mm256_set1_epi8(15), top = _mm256_set1_epi8(-128), ones = _mm256_set1_epi16(1);
  std::memset(out, 0, sizeof(float) * R * kOut);
  for (int g = 0; g < groups; ++g, tile += tile_bytes(BITS)) {
    const int64_t first = static_cast<int64_t>(g) * x.stride + row0;
    const uint8_t* tail = tile + kOut * kGroup * BITS / 8;
    for (int half = 0; half < 2; ++half) {  // 8 outputs: their 32 weights fill half of the registers
      __m256i w[8];
      if constexpr (BITS == 4) {
        for (int c = 0; c < 4; ++c) {
          const __m256i both = _mm256_load_si256(reinterpret_cast<const __m256i*>(tile + 64 * c + 32 * half));
          w[c] = _mm256_and_si256(both, low);
          w[c + 4] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
        }
      } else {  // q - 128, which fits a signed byte
        for (int c = 0; c < 8; ++c)
          w[c] = _mm256_xor_si256(
              _mm256_load_si256(reinterpret_cast<const __m256i*>(tile + 64 * c + 32 * half)), top);
      }
      const __m256 ws = _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(tail + 16 * half)));
      __m256 wm = _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(tail + 32 + 16 * half)));
      if constexpr (BITS == 8) wm = _mm256_fmadd_ps(ws, _mm256_set1_ps(128.f), wm);
      const auto dot = [&](const int8_t* from) {
        const int32_t* a = reinterpret_cast<const int32_t*>(from);
        if constexpr (BITS == 4) {  // 8 * 2 * 15 * 128 fits 16 bits
          __m256i dot16 = _mm256_setzero_si256();
          for (int c = 0; c < 8; ++c)
            dot16 = _mm256_add_epi16(dot16, _mm256_maddubs_epi16(w[c], _mm256_set1_epi32(a[c])));
          return _mm256_madd_epi16(dot16, ones);
        } else {
          __m256i sum = _mm256_setzero_si256();
          for (int c = 0; c < 8; ++c) {
            const __m256i b = _mm256_set1_epi32(a[c]);
            const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(b), _mm256_sign_epi8(w[c], b));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
          }
          return sum;
        }
      };
      for (int r = 0; r < R; ++r) {
        const int64_t group = first + r, at = group * kGroup;
        __m256i sum = dot(x.high + at);
        if constexpr (WIDE) sum = _mm256_add_epi32(_mm256_slli_epi32(sum, 8), dot(x.low + at));
        float* to = out + r * kOut + 8 * half;
        const __m256 by = _mm256_mul_ps(ws, _mm256_set1_ps(x.scale[group]));
        __m256 total = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), by, _mm256_loadu_ps(to));
        total = _mm256_fmadd_ps(wm, _mm256_set1_ps(x.sum[group]), total);
        _mm256_storeu_ps(to, total);
      }
    }
  }
}
#else
template <int BITS, int R, bool WIDE>
inline void gemm_rows(const uint8_t* tile, const Activations& x, int row0, float* out) {
  const int groups = x.inputs / kGroup;
  std::memset(out, 0, sizeof(float) * R * kOut);
  for (int g = 0; g < groups; ++g, tile += tile_bytes(BITS)) {
    const int64_t first = static_cast<int64_t>(g) * x.stride + row0;
    uint8_t w[kOut * kGroup];  // [8 sub-groups of 4 inputs][16 outputs][4]
    if constexpr (BITS == 4) {
      for (int i = 0; i < 256; ++i) {
        w[i] = tile[i] & 15;
        w[256 + i] = tile[i] >> 4;
      }
    } else {
      std::memcpy(w, tile, sizeof w);
    }
    uint16_t tail[2 * kOut];
    std::memcpy(tail, tile + kOut * kGroup * BITS / 8, sizeof tail);
    float ws[kOut], wm[kOut];
    for (int o = 0; o < kOut; ++o) {
      ws[o] = half_to_float(tail[o]);
      wm[o] = half_to_float(tail[kOut + o]);
    }
    const auto dots = [&](const int8_t* a, int32_t* sum) {
      for (int c = 0; c < 8; ++c)
        for (int o = 0; o < kOut; ++o)
          for (int j = 0; j < 4; ++j) sum[o] += static_cast<int32_t>(w[c * 64 + o * 4 + j]) * a[c * 4 + j];
    };
    for (int r = 0; r < R; ++r) {
      const int64_t group = first + r, at = group * kGroup;
      int32_t sum[kOut] = {};
      dots(x.high + at, sum);
      if constexpr (WIDE) {
        for (int& part : sum) part *= 256;
        dots(x.low + at, sum);
      }
      for (int o = 0; o < kOut; ++o)
        out[r * kOut + o] += static_cast<float>(sum[o]) * (ws[o] * x.scale[group]) + wm[o] * x.sum[group];
    }
  }
}
#endif

// Products of as many rows as are live, out of a handful of unrolled sizes.
template <int BITS>
inline void gemm_low_bit(const uint8_t* tile, const Activations& x, int row0, int rows, float* out) {
  with_rows(rows, [&](auto count) {
    if (x.low != nullptr) gemm_rows<BITS, count, true>(tile, x, row0, out);
    else gemm_rows<BITS, count, false>(tile, x, row0, out);
  });
}

}  // namespace octavo
