// The kernels behind kernels/api.py, one call each, over tensors of torch: see ops.py for what the arguments are.
#include "elements.hpp"
#include "paged.hpp"
#include "paged_plan.hpp"
#include "row_ops.hpp"
#include "team.hpp"

namespace octavo {
namespace {

// Work below this stays on the calling thread: waking the others would take longer.
constexpr int64_t kAloneElements = 32768;

// Calls f with a null pointer of the element type: 0 float, 1 bfloat16, 2 float16.
template <class F>
void with_type(int32_t type, const F& f) {
  if (type == 0) f(static_cast<float*>(nullptr));
  else if (type == 1) f(static_cast<Bf16*>(nullptr));
  else f(static_cast<Half*>(nullptr));
}

// Rows in bundles, so that a task is worth handing out.
template <class F>
void share_rows(const Team& team, int64_t rows, int64_t width, const F& f) {
  if (rows * width <= kAloneElements) {
    for (int64_t r = 0; r < rows; ++r) f(r);
    return;
  }
  const int64_t bundle = std::max<int64_t>(1, kAloneElements / 4 / width);
  share(team, static_cast<int>((rows + bundle - 1) / bundle), [&](int task) {
    for (int64_t r = task * bundle; r < std::min(rows, (task + 1) * bundle); ++r) f(r);
  });
}

template <class T>
class Attending {
 public:
  Attending(const Attention& a, Plan& plan, float* partial) : a(a), t(a.tables), plan(plan), partial(partial) {}

  void run(const Part& part) {
    static thread_local Scratch scratch;
    scratch.reserve(a.dim);
    const Range& range = plan.ranges[part.range];
    const bool group = range.tile < 0;
    const Tile& tile = plan.tiles[group ? plan.members[range.first_member] : range.tile];
#if OCTAVO_AVX512
    if constexpr (std::is_same_v<T, Bf16>) {
      if (Bf16Round::serves(a.dim)) return finish(compute<Bf16Round>(range, tile, part, scratch), part, scratch);
    }
#endif
    finish(compute<FloatRound<T>>(range, tile, part, scratch), part, scratch);
  }

 private:
  template <class Round>
  const Range& compute(const Range& range, const Tile& tile, const Part& part, Scratch& s) {
    auto* query = reinterpret_cast<typename Round::Query*>(s.query());
    const int g = t.per_head;
    for (int r = 0; r < range.rows; ++r) {
      const Tile& of = range.tile >= 0 ? tile : plan.tiles[plan.members[range.first_member + r / g]];
      const int row = range.tile >= 0 ? of.first + r : r % g, token = row / g;
      const T* from = static_cast<const T*>(a.q) + (t.starts[of.sequence] + token) * a.q_row +
                      (of.kv_head * g + row % g) * a.q_head;
      if constexpr (std::is_same_v<typename Round::Query, T>) {
        std::memcpy(query + r * a.dim, from, sizeof(T) * a.dim);
      } else {
        for (int i = 0; i < a.dim; i += kLanes) store8(query + r * a.dim + i, load8(from + i));
      }
      const int stop = t.first_position(of.sequence) + token + 1;
      s.begin[r] = t.window > 0 ? std::max(0, stop - t.window) : 0;
      s.end[r] = stop;
    }
    attend<Round, T>(a, t.of(tile.sequence), tile.kv_head, part.begin, part.end, range.rows, s);
    return range;
  }

  void finish(const Range& range, const Part& part, Scratch& s) {
    if (range.tile >= 0) {
      Tile& tile = plan.tiles[range.tile];
      if (tile.parts > 1) return keep(tile, part.index, 0, s);
      for (int r = 0; r < tile.rows; ++r) write(tile, r, s.out() + r * a.dim, s.total[r]);
      return;
    }
    for (int m = 0; m < range.members; ++m) {
      Tile& tile = plan.tiles[plan.members[range.first_member + m]];
      keep(tile, tile.own + part.index, m * t.per_head, s);
    }
  }

  float* kept(const Tile& tile, int index, int row) const {
    return partial + (tile.slot + static_cast<int64_t>(index) * tile.rows + row) * (a.dim + 2);
  }

  // Stores a part of a tile, from row `first` of the scratch on; the last of its parts merges all.
  void keep(Tile& tile, int index, int first, const Scratch& s) {
    for (int r = 0; r < tile.rows; ++r) {
      float* to = kept(tile, index, r);
      to[0] = s.top[first + r];
      to[1] = s.total[first + r];
      std::memcpy(to + 2, const_cast<Scratch&>(s).out() + (first + r) * a.dim, sizeof(float) * a.dim);
    }
    if (__atomic_sub_fetch(&tile.pending, 1, __ATOMIC_ACQ_REL) == 0) merge(tile);
  }

  void merge(const Tile& tile) {
    for (int r = 0; r < tile.rows; ++r) {
      float* whole = kept(tile, 0, r);
      for (int p = 1; p < tile.parts; ++p) {
        const float* part = kept(tile, p, r);
        const float top = std::max(whole[0], part[0]);
        if (top == kNever) continue;
        const float by = std::exp2(whole[0] - top), other = std::exp2(part[0] - top);
        whole[0] = top;
        whole[1] = whole[1] * by + part[1] * other;
        for (int i = 2; i < a.dim + 2; i += kLanes)
          store(whole + i, multiply_add(load<Floats>(whole + i), all(by), load<Floats>(part + i) * all(other)));
      }
      write(tile, r, whole + 2, whole[1]);
    }
  }

  void write(const Tile& tile, int r, const float* row, float total) {
    const int g = t.per_head, at = tile.first + r;
    const int64_t token = t.starts[tile.sequence] + at / g, head = tile.kv_head * g + at % g;
    T* to = static_cast<T*>(a.out) + (token * (t.kv_heads * g) + head) * a.dim;
    const float by = total == 0.f ? 0.f : 1.f / total;
    for (int i = 0; i < a.dim; i += kLanes) store8(to + i, load<Floats>(row + i) * all(by));
  }

  const Attention& a;
  const Tables& t;
  Plan& plan;
  float* partial;
};

// Rows that belong to no sequence, or to one of length 0.
template <class T>
void clear_others(const Attention& a) {
  const Tables& t = a.tables;
  const int64_t width = static_cast<int64_t>(t.kv_heads) * t.per_head * a.dim;
  const auto clear = [&](int64_t from, int64_t to) {
    if (from < to) std::memset(static_cast<T*>(a.out) + from * width, 0, sizeof(T) * (to - from) * width);
  };
  if (t.sequences == 0) return clear(0, t.rows);
  clear(0, t.starts[0]);
  for (int s = 0; s < t.sequences; ++s)
    if (t.lengths[s] <= 0) clear(t.starts[s], t.starts[s + 1]);
  clear(t.starts[t.sequences], t.rows);
}

template <class T>
void paged_attention(const Attention& a, const Team& team) {
  static thread_local Plan plan;
  static thread_local std::vector<float> partial;
  plan.make(a.tables, team.threads);
  clear_others<T>(a);
  partial.resize(plan.slots * (a.dim + 2));
  Attending<T> attending(a, plan, partial.data());
  const Part* parts = plan.parts.data();  // the calling thread's, for all of them
  share(team, static_cast<int>(plan.parts.size()), [&](int i) { attending.run(parts[i]); });
}

}  // namespace

struct Rotation {
  void* qkv;
  const float *cosine, *sine;             // [rows][half] each, or null
  const void *query_norm, *key_norm;      // [dim] each, or null
  void *k, *v;                            // the layer
  const int64_t* slots;
  int64_t row;                            // stride of qkv
  Strides keys, values;
  int64_t rows, block_size;
  int32_t heads, kv_heads, dim;
  float eps;
};

namespace {

template <class T>
void rope_write_kv(const Rotation& x, const Team& team) {
  const int dim = x.dim, half = dim / 2;
  share_rows(team, x.rows, int64_t(x.heads + 2 * x.kv_heads) * dim, [&](int64_t r) {
    T* row = static_cast<T*>(x.qkv) + r * x.row;
    const int64_t slot = x.slots[r];
    const float *cosine = x.cosine + r * half, *sine = x.sine + r * half;
    const auto turn = [&](T* from, const void* norm, T* to) {
      float normal[kMaxDim];
      if (norm != nullptr) {
        add_rms_norm<T, float>(from, nullptr, static_cast<const T*>(norm), dim, x.eps, normal, nullptr);
        if (x.cosine != nullptr) return rotate(normal, cosine, sine, half, to);
        for (int i = 0; i < dim; i += kLanes) store8(to + i, load<Floats>(normal + i));
      } else if (x.cosine != nullptr) {
        rotate(from, cosine, sine, half, to);
      } else if (from != to) {
        std::memcpy(to, from, sizeof(T) * dim);
      }
    };
    for (int h = 0; h < x.heads; ++h) turn(row + h * dim, x.query_norm, row + h * dim);
    if (slot < 0) return;
    for (int h = 0; h < x.kv_heads; ++h) {
      const T *k = row + int64_t(x.heads + h) * dim, *v = k + int64_t(x.kv_heads) * dim;
      turn(const_cast<T*>(k), x.key_norm, static_cast<T*>(x.k) + x.keys.at(slot, x.block_size, h));
      std::memcpy(static_cast<T*>(x.v) + x.values.at(slot, x.block_size, h), v, sizeof(T) * dim);
    }
  });
}

}  // namespace
}  // namespace octavo

extern "C" {

const char* octavo_ops_isa() {
#if OCTAVO_AVX512
  return "avx512";
#elif OCTAVO_AVX2
  return "avx2";
#else
  return "portable";
#endif
}

void octavo_attention(const octavo::Attention* a, int32_t type, const octavo::Team* team) {
  octavo::with_type(type, [&](auto* t) { octavo::paged_attention<std::remove_pointer_t<decltype(t)>>(*a, *team); });
}

void octavo_rope_write_kv(const octavo::Rotation* x, int32_t type, const octavo::Team* team) {
  octavo::with_type(type, [&](auto* t) { octavo::rope_write_kv<std::remove_pointer_t<decltype(t)>>(*x, *team); });
}

// Rows of K or V, each head `size` bytes, to their slots. Strides in bytes.
void octavo_write_kv(const char* from, int64_t row, int64_t head, char* cache, const octavo::Strides* to,
                     const int64_t* slots, int64_t rows, int64_t block_size, int32_t heads, int64_t size) {
  for (int64_t r = 0; r < rows; ++r)
    for (int32_t h = 0; slots[r] >= 0 && h < heads; ++h)
      std::memcpy(cache + to->at(slots[r], block_size, h), from + r * row + h * head, size);
}

void octavo_add_rms_norm(const void* x, const void* residual, const void* weight, void* norm, void* sum, int64_t rows,
                         int32_t n, float eps, int32_t type, const octavo::Team* team) {
  octavo::with_type(type, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    octavo::share_rows(*team, rows, n, [&](int64_t r) {
      const T* before = residual == nullptr ? nullptr : static_cast<const T*>(residual) + r * n;
      octavo::add_rms_norm<T, T>(static_cast<const T*>(x) + r * n, before, static_cast<const T*>(weight), n, eps,
                                 static_cast<T*>(norm) + r * n, static_cast<T*>(sum) + r * n);
    });
  });
}

void octavo_silu_mul(const void* gate_up, int64_t row, void* out, int64_t rows, int32_t n, int32_t type,
                     const octavo::Team* team) {
  octavo::with_type(type, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    octavo::share_rows(*team, rows, 2 * int64_t(n), [&](int64_t r) {
      const T* gate = static_cast<const T*>(gate_up) + r * row;
      octavo::silu_mul<T>(gate, gate + n, n, static_cast<T*>(out) + r * n);
    });
  });
}

// How a step would be cut, for tests: five numbers a range (its tile or -1, members, begin, end, parts), then three a
// part (its range, begin, end). Returns how many ranges there are; `room` numbers fit.
int32_t octavo_plan(const octavo::Tables* tables, int32_t threads, int32_t* out, int32_t room, int32_t* parts) {
  octavo::Plan plan;
  plan.make(*tables, threads);
  *parts = static_cast<int32_t>(plan.parts.size());
  std::vector<int32_t> flat;
  for (const octavo::Range& r : plan.ranges)
    flat.insert(flat.end(), {r.tile, r.members, r.begin, r.end, r.parts});
  for (const octavo::Part& p : plan.parts) flat.insert(flat.end(), {p.range, p.begin, p.end});
  std::copy_n(flat.begin(), std::min<size_t>(flat.size(), room), out);
  return static_cast<int32_t>(plan.ranges.size());
}
}
