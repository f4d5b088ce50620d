// How a step's attention is cut into parts that threads take one by one.
//
// A tile is some query rows of one sequence and one KV head: its tokens' query heads side by side. A range is the run of
// its context that it attends to; a long one is cut into parts when there are too few of them for the threads. Decoding
// sequences whose tables begin with the same blocks attend to these together, as one range of all their rows, and to the
// rest each on its own. Whoever ends the last part of a tile merges its parts by their running maximum and sum
// (Milakov, Gimelshein, arXiv 1805.02867).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace octavo {

constexpr int kTileRows = 64;
constexpr int kRoundTokens = 128;
constexpr int kPartTokens = 256;     // no part of a cut range is shorter: a merge must stay cheap beside it
constexpr int kSharedTokens = 128;   // a shorter common prefix is not worth a group
constexpr int kPackWork = 4;         // what a token's K and V cost beside the work for each row, in rows
constexpr int kPartsPerThread = 3;

// One step, as ops.py gives it. Strides in elements.
struct Tables {
  const int32_t* blocks;  // [sequences][stride]
  int64_t stride;
  const int32_t* starts;   // [sequences + 1]
  const int32_t* lengths;  // [sequences]
  int32_t sequences, rows, block_size, per_head, kv_heads, window;  // window 0: none

  const int32_t* of(int sequence) const { return blocks + sequence * stride; }
  int count(int s) const { return starts[s + 1] - starts[s]; }
  int first_position(int s) const { return lengths[s] - count(s); }
};

struct Tile {
  int32_t sequence, kv_head, first, rows;  // rows `first` .. of the sequence's tokens x query heads of the KV head
  int32_t own;                             // how many parts its own range has
  int32_t parts;                           // and how many there are with those of its group's prefix
  int32_t pending;                         // how many have not ended yet
  int64_t slot;                            // its first row's place in the partial results, when parts > 1
};

// Attends either one tile (group < 0) or members of a group to the tokens [begin, end).
struct Range {
  int32_t tile, first_member, members;
  int32_t rows, begin, end, parts;

  int64_t work() const { return static_cast<int64_t>(end - begin) * (kPackWork + rows); }
};

struct Part {
  int32_t range, begin, end, index;  // index: which of its range's parts
  int64_t work;
};

class Plan {
 public:
  std::vector<Tile> tiles;
  std::vector<Range> ranges;
  std::vector<Part> parts;
  std::vector<int32_t> members;  // tiles of the groups' ranges
  int64_t slots = 0;             // rows of partial results

  void make(const Tables& t, int threads) {
    tiles.clear();
    ranges.clear();
    parts.clear();
    members.clear();
    slots = 0;
    find_groups(t);
    first_tile_.assign(t.sequences, 0);
    for (int s = 0; s < t.sequences; ++s)
      if (t.lengths[s] > 0) add_sequence(t, s);
    add_groups(t);
    cut(threads);
  }

 private:
  void add_sequence(const Tables& t, int s) {
    first_tile_[s] = static_cast<int32_t>(tiles.size());
    const int rows = t.count(s) * t.per_head, position = t.first_position(s);
    for (int head = 0; head < t.kv_heads; ++head) {
      for (int first = 0; first < rows; first += kTileRows) {
        const int count = std::min(kTileRows, rows - first);
        const int begin = t.window > 0 ? std::max(0, position + first / t.per_head + 1 - t.window) : prefix_[s];
        const int end = std::max(begin, position + (first + count - 1) / t.per_head + 1);
        ranges.push_back({static_cast<int32_t>(tiles.size()), 0, 0, count, begin, end, 1});
        tiles.push_back({s, head, first, count, 0, 0, 0, 0});
      }
    }
  }

  // prefix_[s]: how many tokens sequence s attends to with its group; groups_: runs of `order_`.
  void find_groups(const Tables& t) {
    prefix_.assign(t.sequences, 0);
    groups_.clear();
    order_.clear();
    if (t.window > 0 || t.per_head > kTileRows || t.sequences < 2) return;
    const int least = (kSharedTokens + t.block_size - 1) / t.block_size;
    const auto full = [&](int s) { return (t.lengths[s] - 1) / t.block_size; };
    for (int s = 0; s < t.sequences; ++s)
      if (t.lengths[s] > 0 && t.count(s) == 1 && full(s) >= least) order_.push_back(s);
    const auto compare = [&](int a, int b) { return std::memcmp(t.of(a), t.of(b), sizeof(int32_t) * least); };
    std::sort(order_.begin(), order_.end(), [&](int a, int b) {
      const int by = compare(a, b);
      return by != 0 ? by < 0 : a < b;
    });
    const int count = static_cast<int>(order_.size());
    for (int i = 0, end; i < count; i = end) {
      int shared = full(order_[i]);
      for (end = i + 1; end < count && compare(order_[i], order_[end]) == 0; ++end) {
        const int32_t *one = t.of(order_[i]), *other = t.of(order_[end]);
        shared = std::min(shared, full(order_[end]));
        shared = static_cast<int>(std::mismatch(one, one + shared, other).first - one);
      }
      if (end - i < 2) continue;
      groups_.push_back({i, end});
      for (int j = i; j < end; ++j) prefix_[order_[j]] = shared * t.block_size;
    }
  }

  void add_groups(const Tables& t) {
    const int at_once = kTileRows / t.per_head;
    for (const auto& group : groups_) {
      for (int head = 0; head < t.kv_heads; ++head) {
        for (int i = group.first; i < group.second; i += at_once) {
          const int count = std::min(at_once, group.second - i);
          const int from = static_cast<int>(members.size());
          for (int j = i; j < i + count; ++j) members.push_back(first_tile_[order_[j]] + head);
          ranges.push_back({-1, from, count, count * t.per_head, 0, prefix_[order_[i]], 1});
        }
      }
    }
  }

  // The rule of the cut: a range with more work than a thread's fair share of the whole, over kPartsPerThread.
  void cut(int threads) {
    int64_t whole = 0;
    for (const Range& range : ranges) whole += range.work();
    const int64_t share = std::max<int64_t>(1, whole / (threads * kPartsPerThread));
    for (size_t i = 0; i < ranges.size(); ++i) {
      Range& range = ranges[i];
      const int tokens = range.end - range.begin;
      const int most = threads < 2 ? 1 : std::max(1, tokens / kPartTokens);
      const int wanted = static_cast<int>(std::min<int64_t>(most, (range.work() + share - 1) / share));
      int size = (tokens + wanted - 1) / std::max(1, wanted);
      size = std::max(1, (size + kRoundTokens - 1) / kRoundTokens * kRoundTokens);
      range.parts = std::max(1, (tokens + size - 1) / size);
      for (int p = 0; p < range.parts; ++p) {
        const int begin = range.begin + p * size, end = std::min(range.end, begin + size);
        parts.push_back({static_cast<int32_t>(i), begin, end, p,
                         static_cast<int64_t>(end - begin) * (kPackWork + range.rows)});
      }
      if (range.tile >= 0) tiles[range.tile].own = tiles[range.tile].parts = range.parts;
      for (int m = 0; m < range.members; ++m) tiles[members[range.first_member + m]].parts += range.parts;
    }
    for (Tile& tile : tiles) {
      tile.pending = tile.parts;
      if (tile.parts < 2) continue;
      tile.slot = slots;
      slots += static_cast<int64_t>(tile.parts) * tile.rows;
    }
    // Long ones first, so that no thread begins one when the others are ending.
    std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.work > b.work; });
  }

  std::vector<int32_t> first_tile_, prefix_, order_;
  std::vector<std::pair<int, int>> groups_;
};

}  // namespace octavo
