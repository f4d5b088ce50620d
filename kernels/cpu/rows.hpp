// Rows of activations that products read, kept in the forms of the matrices that read them: int8 with scales by groups
// of 32 for low-bit ones, bf16 for those of bf16.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>

#include "gemm.hpp"

namespace octavo {

// Zeroed memory on a cache line's boundary.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t count) { reset(count); }
  void reset(int64_t count) {
    void* memory = std::aligned_alloc(64, (count * sizeof(T) + 127) / 64 * 64);
    if (memory == nullptr) throw std::bad_alloc();
    std::memset(memory, 0, count * sizeof(T));
    data_.reset(static_cast<T*>(memory));
  }
  T* get() const { return data_.get(); }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> data_;
};

struct Forms {
  bool low_bit = false, bf16 = false;

  Forms& add(const Weight& reader) {
    (reader.bits == 16 ? bf16 : low_bit) = true;
    return *this;
  }
};

class Rows {
 public:
  // `wide`: low-bit matrices may ask for 16 bits instead of 8.
  Rows(int rows, int inputs, Forms forms, bool wide) : inputs_(inputs) {
    const int64_t count = int64_t(stride(rows)) * inputs;
    if (forms.bf16) bf16_.reset(count);
    if (!forms.low_bit) return;
    high_.reset(count);
    if (wide) low_.reset(count);
    scale_.reset(count / kGroup);
    sum_.reset(count / kGroup);
  }

  // How many rows there are this time: they are kept close together.
  void fit(int rows) { stride_ = stride(rows); }

  Activations view(bool wide) const {
    return {high_.get(), wide ? low_.get() : nullptr, scale_.get(), sum_.get(), bf16_.get(), inputs_, stride_};
  }

  // at and count: multiples of 32
  void store(bool wide, int row, int at, const float* x, int count) const {
    for (int i = 0; i < count; i += kGroup) {
      const int64_t group = int64_t((at + i) / kGroup) * stride_ + row, to = group * kGroup;
      if (bf16_.get() != nullptr) round_group(x + i, bf16_.get() + to);
      if (high_.get() == nullptr) continue;
      float *scale = scale_.get() + group, *sum = sum_.get() + group;
      if (wide) quantise_group<true>(x + i, high_.get() + to, low_.get() + to, scale, sum);
      else quantise_group<false>(x + i, high_.get() + to, nullptr, scale, sum);
    }
  }

 private:
  // A few rows lie close together. Of more a product reads up to the next 16; the two beyond keep groups from lying a
  // power of two apart, where they would fight for the same cache sets.
  static int stride(int rows) { return rows <= 4 ? rows : (rows + 15) / 16 * 16 + 2; }

  int inputs_, stride_ = 0;
  Buffer<int8_t> high_, low_;
  Buffer<float> scale_, sum_;
  Buffer<uint16_t> bf16_;
};

}  // namespace octavo
