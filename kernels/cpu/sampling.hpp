// Draws a row's next token: greedy, or by inverting the cumulative distribution in the order of the vocabulary at one
// uniform number, after temperature, min_p, top_k and top_p, each on what the one before left.
//
// The filters are applied as a least weight, so that tokens tied with the last one admitted stay in. It is found
// without sorting the vocabulary: among the tokens within some powers of two of the best one, more of them if those do
// not decide it. A row depends on its own logits and settings alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "vector.hpp"

namespace octavo {

struct Draw {
  double uniform;     // in [0, 1)
  float temperature;  // 0: greedy
  float top_p, min_p;
  int32_t top_k;  // 0: no limit
};

constexpr int kSpan = 256;  // the distribution is summed in spans: first a span is chosen, then a token in it

// Memory for one row at a time of a vocabulary.
struct DrawScratch {
  explicit DrawScratch(int vocabulary)
      : spans((vocabulary + kSpan - 1) / kSpan), weights(int64_t(spans) * kSpan), most(spans), sum(spans) {}

  int spans;
  std::vector<float> weights, most;  // 2 to the scaled logits, at most 1; the greatest of each span
  std::vector<double> sum;           // of what each span has left
  std::vector<float> candidates;
};

constexpr int kUnusable = -1;

inline bool any(Ints lanes) {
  int32_t found = 0;
  for (int i = 0; i < kLanes; ++i) found |= lanes[i];
  return found != 0;
}

// The greatest of n numbers; NaN if one of them is.
inline float peak_of(const float* x, int n) {
  Floats most = all(-std::numeric_limits<float>::infinity());
  Ints broken = most != most;
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Floats more = load<Floats>(x + i);
    broken |= more != more;
    most = more > most ? more : most;
  }
  float peak = largest(most);
  bool bad = any(broken);
  for (; i < n; ++i) {
    bad |= x[i] != x[i];
    peak = std::max(peak, x[i]);
  }
  return bad ? std::numeric_limits<float>::quiet_NaN() : peak;
}

inline void weigh(const float* x, int n, float peak, float temperature, DrawScratch& s) {
  const Floats top = all(peak), by = all(1.44269504088896340736f / temperature);
  float* w = s.weights.data();
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(w + i, exp2((load<Floats>(x + i) - top) * by));
  alignas(32) float rest[kLanes];
  std::fill(rest, rest + kLanes, -std::numeric_limits<float>::infinity());
  std::copy(x + i, x + n, rest);
  if (i < n) store(w + i, exp2((load<Floats>(rest) - top) * by));
  std::fill(w + std::min<int64_t>(i + kLanes, s.weights.size()), w + s.weights.size(), 0.f);
  for (int span = 0; span < s.spans; ++span) {
    Floats most = all(0.f);
    for (int k = 0; k < kSpan; k += kLanes) {
      const Floats more = load<Floats>(w + span * kSpan + k);
      most = more > most ? more : most;
    }
    s.most[span] = largest(most);
  }
}

// Sums what weighs at least `least`, span by span; returns the sum of all.
inline double sum_spans(float least, DrawScratch& s) {
  double all_spans = 0;
  for (int span = 0; span < s.spans; ++span) {
    s.sum[span] = 0;
    if (s.most[span] < least) continue;
    Floats sum = all(0.f);
    for (int k = 0; k < kSpan; k += kLanes) {
      const Floats w = load<Floats>(s.weights.data() + span * kSpan + k);
      sum += w >= all(least) ? w : all(0.f);
    }
    s.sum[span] = total(sum);
    all_spans += s.sum[span];
  }
  return all_spans;
}

inline void gather(float cut, DrawScratch& s) {
  s.candidates.clear();
  for (int span = 0; span < s.spans; ++span) {
    if (s.most[span] < cut) continue;
    for (int k = span * kSpan; k < (span + 1) * kSpan; ++k)
      if (s.weights[k] >= cut) s.candidates.push_back(s.weights[k]);
  }
}

// The least weight that min_p, top_k and top_p admit; that of the best token is 1.
inline float least_weight(const Draw& d, int vocabulary, double everything, DrawScratch& s) {
  const float floor = std::min(d.min_p, 1.f);
  const bool by_rank = d.top_k > 0 && d.top_k < vocabulary, by_mass = d.top_p < 1.f;
  if (!by_rank && !by_mass) return floor;
  constexpr float kLowest = std::numeric_limits<float>::min();  // below it a weight is 0
  for (const float cut : {0x1p-8f, 0x1p-16f, 0x1p-32f, kLowest}) {
    gather(cut, s);
    const bool complete = cut == kLowest;
    if (by_rank && static_cast<int>(s.candidates.size()) < d.top_k && !complete) continue;
    std::sort(s.candidates.begin(), s.candidates.end(), std::greater<float>());
    float least = floor;
    if (by_rank && d.top_k <= static_cast<int>(s.candidates.size())) least = std::max(least, s.candidates[d.top_k - 1]);
    if (!by_mass) return least;
    if (least > 0 && least < cut && !complete) continue;  // not all of what is admitted lies here
    double mass = everything;
    if (least > 0) {
      mass = 0;
      for (const float w : s.candidates) mass += w >= least ? w : 0.f;
    }
    double sum = 0;
    for (const float w : s.candidates) {
      if (w < least) break;
      sum += w;
      if (sum >= d.top_p * mass) return w;
    }
    if (complete) return least;
  }
  return floor;
}

// The chosen token, or kUnusable where a logit is NaN or the best one is infinite.
inline int draw(const float* x, int vocabulary, const Draw& d, DrawScratch& s) {
  const float peak = peak_of(x, vocabulary);
  if (!std::isfinite(peak)) return kUnusable;
  if (d.temperature <= 0.f) return static_cast<int>(std::find(x, x + vocabulary, peak) - x);
  weigh(x, vocabulary, peak, d.temperature, s);
  double mass = sum_spans(0.f, s);
  const float least = least_weight(d, vocabulary, mass, s);
  if (least > 0.f) mass = sum_spans(least, s);
  double left = d.uniform * mass;
  int span = 0;
  for (; span < s.spans - 1 && left >= s.sum[span]; ++span) left -= s.sum[span];
  while (s.sum[span] == 0.) --span;  // by rounding: behind the last span that has any
  int last = 0;
  for (int k = span * kSpan; k < (span + 1) * kSpan; ++k) {
    const float w = s.weights[k];
    if (w < least || w == 0.f) continue;
    last = k;
    if (left < w) break;
    left -= w;
  }
  return last;
}

}  // namespace octavo
