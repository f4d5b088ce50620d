// The decoder's library: what Python calls. The step itself is in model.hpp.
#include <cstdlib>
#include <memory>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "model.hpp"

extern "C" {

// Which inner loops this build has.
const char* octavo_isa() {
#if OCTAVO_AVX512
  return "avx512";
#elif OCTAVO_AVX2
  return "avx2";
#else
  return "portable";
#endif
}

void* octavo_model_new(const octavo::Config* config) {
  try {
    return new octavo::Model(*config);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void octavo_model_free(void* model) { delete static_cast<octavo::Model*>(model); }

void octavo_model_step(void* model, const octavo::Batch* batch) { static_cast<octavo::Model*>(model)->step(*batch); }

// tokens[row]: drawn from logits [rows][vocabulary], or kUnusable. model: whose threads do it, or null for this one.
void octavo_sample(void* model, const float* logits, const octavo::Draw* draws, int32_t rows, int32_t vocabulary,
                   int32_t* tokens) {
  const auto draw_row = [=](int r, octavo::DrawScratch& scratch) {
    tokens[r] = octavo::draw(logits + int64_t(r) * vocabulary, vocabulary, draws[r], scratch);
  };
  if (model != nullptr) return static_cast<octavo::Model*>(model)->for_rows(rows, vocabulary, draw_row);
  octavo::DrawScratch scratch(vocabulary);
  for (int r = 0; r < rows; ++r) draw_row(r, scratch);
}

// Seconds that all steps so far spent in each part, [kParts].
void octavo_model_times(void* model, double* out) {
  std::memcpy(out, static_cast<octavo::Model*>(model)->seconds, sizeof(double) * octavo::kParts);
}

// Zeroed memory on huge pages where the system has them; null when there is not enough.
void* octavo_memory_new(int64_t bytes) {
#if defined(__linux__)
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
#else
  return std::calloc(1, bytes);
#endif
}

void octavo_memory_free(void* memory, int64_t bytes) {
#if defined(__linux__)
  munmap(memory, bytes);
#else
  (void)bytes;
  std::free(memory);
#endif
}

// One matrix product, for tests and for measuring: x is float [rows][inputs], out is float [rows][outputs].
void octavo_gemm(const octavo::Weight* w, const float* x, int32_t rows, int32_t wide, float* out) {
  octavo::Rows q(rows, w->inputs, octavo::Forms().add(*w), wide != 0);
  q.fit(rows);
  for (int r = 0; r < rows; ++r) q.store(wide != 0, r, 0, x + int64_t(r) * w->inputs, w->inputs);
  alignas(64) float product[octavo::kRows * octavo::kOut];
  for (int tile = 0; tile < w->outputs / octavo::kOut; ++tile)
    for (int r0 = 0; r0 < rows; r0 += octavo::kRows) {
      const int n = std::min(octavo::kRows, rows - r0);
      octavo::gemm(*w, tile, q.view(wide != 0), r0, n, product);
      for (int r = 0; r < n; ++r)
        std::memcpy(out + int64_t(r0 + r) * w->outputs + tile * octavo::kOut, product + r * octavo::kOut, 64);
    }
}
}
