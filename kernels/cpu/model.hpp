// One whole step of a Llama-like decoder in one call: embeddings in, logits out, keys and values written on the way.
//
// All threads walk the same phases; within a phase they take tasks from one counter, between phases they meet at a
// barrier. Per layer: normalise + quantise | QKV + rope + KV write | shared prefixes of groups | attention + quantise |
// O + residual | normalise + quantise | gate, up, SiLU + quantise | down + residual. Python runs once a step.
#pragma once

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <memory>
#include <vector>

#include "attention.hpp"
#include "pool.hpp"
#include "rows.hpp"
#include "sampling.hpp"
#include "structures.hpp"

namespace octavo {

constexpr float kLog2e = 1.44269504088896340736f;
constexpr int kRowChunk = 64;  // rows of a matrix task: their activations stay in the first-level cache

inline int up16(int n) { return (n + 15) / 16 * 16; }

// What a step's time is counted under; named in decoder.py.
enum Part { kEmbed, kNorms, kQkv, kPrefixes, kAttention, kOutput, kGateUp, kDown, kHead, kParts };

struct AttentionTask {
  int sequence, first_token, tokens;  // tokens of the batch, at most 16 / (heads per KV head)
};

struct GroupTask {
  int group, first_member, members;  // into Model::members
};

inline void rms_norm(const float* x, const float* weight, int n, float eps, float* out) {  // n: a multiple of 16
  Floats one = all(0.f), other = all(0.f);
  for (int i = 0; i < n; i += 2 * kLanes) {
    const Floats a = load<Floats>(x + i), b = load<Floats>(x + i + kLanes);
    one = multiply_add(a, a, one);
    other = multiply_add(b, b, other);
  }
  const Floats by = all(1.f / std::sqrt(total(one + other) / static_cast<float>(n) + eps));
  for (int i = 0; i < n; i += kLanes) store(out + i, load<Floats>(x + i) * by * load<Floats>(weight + i));
}

class Model {
  using Clock = std::chrono::steady_clock;

 public:
  explicit Model(const Config& config)
      : c(config), layers(config.layer, config.layer + config.layers), pool(config.threads),
        per_head(config.heads / config.kv_heads), tile_tokens(std::max(1, kRows / per_head)),
        hidden(int64_t(up16(c.max_tokens)) * c.hidden),
        normal(c.max_tokens, c.hidden, forms({&Layer::qkv, &Layer::gate_up}), true),
        attended(c.max_tokens, c.heads * c.head_dim, forms({&Layer::out}), false),
        mixed(c.max_tokens, c.intermediate, forms({&Layer::down}), true),
        last(c.max_rows, c.hidden, Forms().add(c.head), false), query(int64_t(up16(c.max_tokens)) * c.heads * c.head_dim),
        top(int64_t(c.max_tokens) * c.heads), total(int64_t(c.max_tokens) * c.heads),
        partial(int64_t(c.max_tokens) * c.heads * c.head_dim) {
    c.layer = layers.data();
    for (int i = 0; i < c.threads; ++i) {
      scratch.push_back(std::make_unique<Scratch>());
      state.push_back(std::make_unique<State>());
      query_rows.emplace_back(int64_t(kRows) * kMaxHead);
    }
  }

  void step(const Batch& batch) {
    b = batch;
    since = Clock::now();
    plan();
    pool.run([this](int thread) { work(thread); }, b.threads);
  }

  // Calls draw_row(row, scratch) for all rows, by all threads.
  template <class F>
  void for_rows(int rows, int vocabulary, const F& draw_row) {
    while (static_cast<int>(draw_scratch.size()) < c.threads) draw_scratch.emplace_back(vocabulary);
    const auto body = [&](int thread) {
      for (int r = pool.next(); r < rows; r = pool.next()) draw_row(r, draw_scratch[thread]);
      pool.barrier();
    };
    pool.run(body, std::min(rows, c.threads));
  }

  double seconds[kParts] = {};  // of all steps so far

 private:
  // The forms in which these matrices of all layers want their rows.
  Forms forms(std::initializer_list<Weight Layer::*> readers) const {
    Forms found;
    for (const Layer& layer : layers)
      for (Weight Layer::*reader : readers) found.add(layer.*reader);
    return found;
  }

  void plan() {
    for (Rows* rows : {&normal, &attended, &mixed}) rows->fit(b.tokens);
    last.fit(b.rows);
    tasks.clear();
    for (int s = 0; s < b.sequences; ++s)
      for (int t = b.query_starts[s]; t < b.query_starts[s + 1]; t += tile_tokens)
        tasks.push_back({s, t, std::min(tile_tokens, b.query_starts[s + 1] - t)});
    // Long ones first: the last task of a phase should be a short one.
    std::stable_sort(tasks.begin(), tasks.end(), [this](const AttentionTask& x, const AttentionTask& y) {
      return b.lengths[x.sequence] > b.lengths[y.sequence];
    });
    group_tasks.clear();
    members.clear();
    for (int g = 0; g < b.groups; ++g) {
      const int first = static_cast<int>(members.size());
      for (int s = 0; s < b.sequences; ++s)
        if (b.group_of[s] == g) members.push_back(s);
      const int count = static_cast<int>(members.size()) - first;
      for (int i = 0; i < count; i += tile_tokens)
        group_tasks.push_back({g, first + i, std::min(tile_tokens, count - i)});
    }
  }

  template <class F>
  void phase(int count, const F& task) {
    for (int i = pool.next(); i < count; i = pool.next()) task(i);
    pool.barrier();
  }

  // Counts the time since the last mark. One thread keeps it: the others end each phase with it.
  void mark(Part part, int thread) {
    if (thread != 0) return;
    const auto now = Clock::now();
    seconds[part] += std::chrono::duration<double>(now - since).count();
    since = now;
  }

  void work(int thread) {
    phase((b.tokens + 15) / 16, [&](int i) { embed(i * 16, std::min(b.tokens, i * 16 + 16)); });
    mark(kEmbed, thread);
    for (int l = 0; l < c.layers; ++l) {
      const Layer& layer = layers[l];
      const Cache cache{b.cache + l * b.layer_stride, c.kv_heads, c.head_dim, c.kv_int8 != 0};
      normalise(layer.norm_attention, true);
      mark(kNorms, thread);
      project(layer, cache);
      mark(kQkv, thread);
      if (!group_tasks.empty())
        phase(static_cast<int>(group_tasks.size()) * c.kv_heads, [&](int i) {
          attend_group(group_tasks[i / c.kv_heads], i % c.kv_heads, cache, thread);
        });
      mark(kPrefixes, thread);
      phase(static_cast<int>(tasks.size()) * c.kv_heads,
            [&](int i) { attend_own(tasks[i / c.kv_heads], i % c.kv_heads, cache, thread); });
      mark(kAttention, thread);
      add_product(layer.out, attended.view(false));
      mark(kOutput, thread);
      normalise(layer.norm_mlp, false);
      mark(kNorms, thread);
      gate(layer.gate_up);
      mark(kGateUp, thread);
      add_product(layer.down, mixed.view(true));
      mark(kDown, thread);
    }
    phase(b.rows, [&](int r) {
      alignas(64) float row[8192];
      rms_norm(hidden.get() + int64_t(b.row_tokens[r]) * c.hidden, c.norm_final, c.hidden, c.eps, row);
      last.store(false, r, 0, row, c.hidden);
    });
    mark(kNorms, thread);
    const int chunks = (c.head.outputs / kOut + 7) / 8;
    phase(b.rows > 0 ? chunks : 0, [&](int i) { classify(i * 8); });
    mark(kHead, thread);
  }

  void embed(int begin, int end) {
    for (int t = begin; t < end; ++t) {
      float* to = hidden.get() + int64_t(t) * c.hidden;
      if (c.embedding == nullptr) {
        read_row(c.head, b.ids[t], to);
        continue;
      }
      const uint16_t* from = c.embedding + int64_t(b.ids[t]) * c.hidden;
      for (int i = 0; i < c.hidden; ++i) to[i] = bf16_to_float(from[i]);
    }
  }

  void normalise(const float* weight, bool wide) {
    // Neighbouring rows in one task: what they write shares lines of cache.
    const int at_once = std::clamp(b.tokens / (2 * c.threads), 1, kRows);
    phase((b.tokens + at_once - 1) / at_once, [&](int i) {
      alignas(64) float row[8192];
      for (int t = i * at_once; t < std::min(b.tokens, (i + 1) * at_once); ++t) {
        rms_norm(hidden.get() + int64_t(t) * c.hidden, weight, c.hidden, c.eps, row);
        normal.store(wide, t, 0, row, c.hidden);
      }
    });
  }

  int row_chunks() const { return (b.tokens + kRowChunk - 1) / kRowChunk; }

  // A task: one head's outputs for a chunk of rows, then bias, norm and rope, then where they belong.
  void project(const Layer& layer, const Cache& cache) {
    const int units = c.heads + 2 * c.kv_heads, tiles = c.head_dim / kOut, chunks = row_chunks();
    phase(units * chunks, [&](int i) {
      const int unit = i / chunks, chunk = i % chunks;
      alignas(64) float product[kRows * kOut];
      alignas(64) float rows[kRows][kMaxHead];
      const int end = std::min(b.tokens, (chunk + 1) * kRowChunk);
      for (int r0 = chunk * kRowChunk; r0 < end; r0 += kRows) {
        const int n = std::min(kRows, end - r0);
        for (int tile = 0; tile < tiles; ++tile) {
          gemm(layer.qkv, unit * tiles + tile, normal.view(true), r0, n, product);
          for (int r = 0; r < n; ++r) std::memcpy(&rows[r][tile * kOut], product + r * kOut, sizeof(float) * kOut);
        }
        for (int r = 0; r < n; ++r) finish_head(layer, cache, unit, r0 + r, rows[r]);
      }
    });
  }

  void finish_head(const Layer& layer, const Cache& cache, int unit, int t, float* row) {
    const int dim = c.head_dim, half = dim / 2;
    if (layer.qkv_bias != nullptr)
      for (int i = 0; i < dim; ++i) row[i] += layer.qkv_bias[unit * dim + i];
    const bool is_query = unit < c.heads, is_key = !is_query && unit < c.heads + c.kv_heads;
    const float* norm = is_query ? layer.norm_query : is_key ? layer.norm_key : nullptr;
    if (norm != nullptr) rms_norm(row, norm, dim, c.eps, row);
    if (layer.rotated && (is_query || is_key)) {
      const float* cosine = c.cosine + int64_t(b.positions[t]) * half;
      const float* sine = c.sine + int64_t(b.positions[t]) * half;
      for (int i = 0; i < half; ++i) {
        const float x = row[i], y = row[i + half];
        row[i] = x * cosine[i] - y * sine[i];
        row[i + half] = y * cosine[i] + x * sine[i];
      }
    }
    if (is_query) {
      const float by = c.scale * kLog2e;
      uint16_t* to = query.get() + (int64_t(t) * c.heads + unit) * dim;
      for (int i = 0; i < dim; ++i) to[i] = float_to_bf16(row[i] * by);
    } else if (b.slots[t] >= 0) {
      cache.write(b.slots[t], (unit - c.heads) % c.kv_heads, row, !is_key);
    }
  }

  const uint16_t* query_of(int token, int kv_head) const {
    return query.get() + (int64_t(token) * c.heads + kv_head * per_head) * c.head_dim;
  }

  void attend_group(const GroupTask& task, int kv_head, const Cache& cache, int thread) {
    State& st = *state[thread];
    uint16_t* rows = query_rows[thread].get();
    int32_t limit[kRows];
    const int dim = c.head_dim, blocks = b.group_blocks[task.group], n = task.members * per_head;
    for (int m = 0; m < task.members; ++m) {
      const int token = b.query_starts[members[task.first_member + m]];
      std::memcpy(rows + m * per_head * dim, query_of(token, kv_head), sizeof(uint16_t) * per_head * dim);
    }
    std::fill(limit, limit + n, blocks * kBlock);
    st.clear(n, dim);
    const int32_t* table = b.tables + members[task.first_member] * b.table_stride;
    attend(cache, kv_head, table, 0, blocks, rows, n, limit, blocks * kBlock, st, *scratch[thread]);
    for (int r = 0; r < n; ++r) {
      const int token = b.query_starts[members[task.first_member + r / per_head]];
      const int64_t at = int64_t(token) * c.heads + kv_head * per_head + r % per_head;
      top.get()[at] = st.top[r];
      total.get()[at] = st.total[r];
      std::memcpy(partial.get() + at * dim, st.out + r * dim, sizeof(float) * dim);
    }
  }

  void attend_own(const AttentionTask& task, int kv_head, const Cache& cache, int thread) {
    State& st = *state[thread];
    uint16_t* rows = query_rows[thread].get();
    int32_t limit[kRows];
    const int dim = c.head_dim, s = task.sequence, n = task.tokens * per_head;
    const int first_position = b.lengths[s] - (b.query_starts[s + 1] - task.first_token);
    for (int i = 0; i < task.tokens; ++i) {
      std::memcpy(rows + i * per_head * dim, query_of(task.first_token + i, kv_head), sizeof(uint16_t) * per_head * dim);
      std::fill(limit + i * per_head, limit + (i + 1) * per_head, first_position + i + 1);
    }
    st.clear(n, dim);
    int begin = 0;
    if (b.groups > 0 && b.group_of[s] >= 0) {  // goes on where the group's prefix ended
      begin = b.group_blocks[b.group_of[s]];
      const int64_t at = int64_t(task.first_token) * c.heads + kv_head * per_head;
      std::memcpy(st.top, top.get() + at, sizeof(float) * n);
      std::memcpy(st.total, total.get() + at, sizeof(float) * n);
      std::memcpy(st.out, partial.get() + at * dim, sizeof(float) * n * dim);
    }
    const int seen = first_position + task.tokens;  // by the last token of the tile
    if (b.lengths[s] > 0)
      attend(cache, kv_head, b.tables + s * b.table_stride, begin, (seen + kBlock - 1) / kBlock, rows, n, limit,
             b.lengths[s], st, *scratch[thread]);
    for (int i = 0; i < task.tokens; ++i) {
      for (int h = 0; h < per_head; ++h) {
        float* row = st.out + (i * per_head + h) * dim;
        const float whole = st.total[i * per_head + h], by = whole > 0.f ? 1.f / whole : 0.f;
        for (int j = 0; j < dim; ++j) row[j] *= by;
      }
      attended.store(false, task.first_token + i, kv_head * per_head * dim, st.out + i * per_head * dim, per_head * dim);
    }
  }

  void add_product(const Weight& weight, const Activations& rows) {
    const int chunks = row_chunks();
    phase(weight.outputs / kOut * chunks, [&](int i) {
      const int tile = i / chunks, chunk = i % chunks;
      alignas(64) float product[kRows * kOut];
      const int end = std::min(b.tokens, (chunk + 1) * kRowChunk);
      const int live = std::min(kOut, c.hidden - tile * kOut);
      for (int r0 = chunk * kRowChunk; r0 < end; r0 += kRows) {
        const int n = std::min(kRows, end - r0);
        gemm(weight, tile, rows, r0, n, product);
        for (int r = 0; r < n; ++r) {
          float* to = hidden.get() + int64_t(r0 + r) * c.hidden + tile * kOut;
          for (int o = 0; o < live; ++o) to[o] += product[r * kOut + o];
        }
      }
    });
  }

  void gate(const Weight& weight) {
    const int chunks = row_chunks();
    const Activations rows = normal.view(false);  // half of all weights, and it minds 8 bits least for what 16 cost
    phase(c.intermediate / kGroup * chunks, [&](int i) {
      const int unit = i / chunks, chunk = i % chunks;
      alignas(64) float product[4][kRows * kOut];
      alignas(64) float row[kGroup];
      const int end = std::min(b.tokens, (chunk + 1) * kRowChunk);
      for (int r0 = chunk * kRowChunk; r0 < end; r0 += kRows) {
        const int n = std::min(kRows, end - r0);
        for (int part = 0; part < 4; ++part) gemm(weight, unit * 4 + part, rows, r0, n, product[part]);
        for (int r = 0; r < n; ++r) {
          for (int o = 0; o < kGroup; o += kLanes) {
            const int from = r * kOut + o % kOut;
            const Floats x = load<Floats>(product[o / kOut] + from), y = load<Floats>(product[2 + o / kOut] + from);
            // x / (1 + e^-x) * y; beyond 2^126 the quotient is 0 anyway
            const Floats power = x * all(-kLog2e);
            store(row + o, x / (all(1.f) + exp2(power > all(126.f) ? all(126.f) : power)) * y);
          }
          mixed.store(true, r0 + r, unit * kGroup, row, kGroup);
        }
      }
    });
  }

  void classify(int first_tile) {
    alignas(64) float product[kRows * kOut];
    const int end = std::min(first_tile + 8, c.head.outputs / kOut);
    for (int tile = first_tile; tile < end; ++tile) {
      const int live = std::min(kOut, c.vocabulary - tile * kOut);
      for (int r0 = 0; r0 < b.rows; r0 += kRows) {
        const int n = std::min(kRows, b.rows - r0);
        gemm(c.head, tile, last.view(false), r0, n, product);
        for (int r = 0; r < n; ++r)
          std::memcpy(b.logits + int64_t(r0 + r) * c.vocabulary + tile * kOut, product + r * kOut, sizeof(float) * live);
      }
    }
  }

  Config c;
  std::vector<Layer> layers;
  Pool pool;
  const int per_head, tile_tokens;
  Batch b{};
  Buffer<float> hidden;
  Rows normal, attended, mixed, last;
  Buffer<uint16_t> query;
  Buffer<float> top, total, partial;  // what a group's prefix gave each token and head
  std::vector<std::unique_ptr<Scratch>> scratch;
  std::vector<std::unique_ptr<State>> state;
  std::vector<Buffer<uint16_t>> query_rows;
  std::vector<DrawScratch> draw_scratch;
  std::vector<AttentionTask> tasks;
  std::vector<GroupTask> group_tasks;
  std::vector<int> members;
  Clock::time_point since;
};

}  // namespace octavo
