// What a decoder layer does row by row beside its products: norms, rotation, storing K and V, gating. Computed in
// float, rounded once.
#pragma once

#include "elements.hpp"

namespace octavo {

// sum = x + residual, rounded (left out without a residual); norm = sum / its root mean square * weight. norm and sum
// may be x and residual.
template <class T, class N>
void add_rms_norm(const T* x, const T* residual, const T* weight, int n, float eps, N* norm, T* sum) {
  Floats squares[2] = {all(0.f), all(0.f)};
  const T* from = residual == nullptr ? x : sum;
  for (int i = 0; i < n; i += kLanes) {
    const int count = n - i < kLanes ? n - i : kLanes;
    const bool whole = count == kLanes;
    Floats value = whole ? load8(x + i) : load_some(x + i, count);
    if (residual != nullptr) {
      value += whole ? load8(residual + i) : load_some(residual + i, count);
      if (whole) {
        store8(sum + i, value);
        value = load8(sum + i);
      } else {
        store_some(sum + i, value, count);
        value = load_some(sum + i, count);
      }
    }
    Floats& square = squares[i / kLanes % 2];
    square = multiply_add(value, value, square);
  }
  const float by = 1.f / std::sqrt(total(squares[0] + squares[1]) / static_cast<float>(n) + eps);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store8(norm + i, load8(from + i) * all(by) * load8(weight + i));
  if (i < n) store_some(norm + i, load_some(from + i, n - i) * all(by) * load_some(weight + i, n - i), n - i);
}

// Component i turns with component i + half. `to` may be `from`.
template <class F, class T>
void rotate(const F* from, const float* cosine, const float* sine, int half, T* to) {
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Floats x = load8(from + i), y = load8(from + half + i), c = load8(cosine + i), s = load8(sine + i);
    store8(to + i, x * c - y * s);
    store8(to + half + i, y * c + x * s);
  }
  if (const int left = half - i; left > 0) {
    const Floats x = load_some(from + i, left), y = load_some(from + half + i, left);
    const Floats c = load_some(cosine + i, left), s = load_some(sine + i, left);
    store_some(to + i, x * c - y * s, left);
    store_some(to + half + i, y * c + x * s, left);
  }
}

template <class T>
void silu_mul(const T* gate, const T* up, int n, T* out) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Floats x = load8(gate + i);
    store8(out + i, x * sigmoid(x) * load8(up + i));
  }
  if (const int left = n - i; left > 0) {
    const Floats x = load_some(gate + i, left);
    store_some(out + i, x * sigmoid(x) * load_some(up + i, left), left);
  }
}

// Where a slot's K or V of a head lies. Strides in elements.
struct Strides {
  int64_t block, token, head;

  int64_t at(int64_t slot, int64_t block_size, int64_t h) const {
    return slot / block_size * block + slot % block_size * token + h * head;
  }
};

}  // namespace octavo
