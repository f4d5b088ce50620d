// Threads that run one step together. They spin between the phases of a step, where a wait lasts microseconds, and
// sleep between steps, so that an idle engine costs nothing. Our own and not OpenMP: torch brings its own copy of that
// runtime, and two of them in one process fight for the cores.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#define OCTAVO_PAUSE() _mm_pause()
#else
#define OCTAVO_PAUSE() std::this_thread::yield()
#endif

namespace octavo {

class Pool {
 public:
  explicit Pool(int threads) : size_(threads < 1 ? 1 : threads) {
    for (int i = 1; i < size_; ++i) workers_.emplace_back([this, i] { loop(i); });
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
      ++generation_;
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  int size() const { return size_; }

  // Runs body(thread) on the first `active` threads (0: on all) and returns when they have ended.
  void run(const std::function<void(int)>& body, int active = 0) {
    active_ = active < 1 || active > size_ ? size_ : active;
    if (active_ == 1) return body(0);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      body_ = &body;
      running_.store(size_ - 1, std::memory_order_relaxed);
      ++generation_;
    }
    wake_.notify_all();
    body(0);
    while (running_.load(std::memory_order_acquire) != 0) OCTAVO_PAUSE();
  }

  // Every active thread must call it; none goes on before all have come. Resets the task counter.
  void barrier() {
    if (active_ == 1) {
      next_.store(0, std::memory_order_relaxed);
      return;
    }
    const uint32_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == active_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      next_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
    } else {
      for (int spins = 0; phase_.load(std::memory_order_acquire) == phase;) {
        // A thread that lost its core to another process must get it back: after a while let others run.
        if (++spins < 4096) OCTAVO_PAUSE();
        else std::this_thread::yield();
      }
    }
  }

  // The next task of this phase. Tasks are handed out one by one, so that no thread waits long for another.
  int next() { return next_.fetch_add(1, std::memory_order_relaxed); }

 private:
  void loop(int index) {
    uint64_t seen = 0;
    for (;;) {
      const std::function<void(int)>* body;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return generation_ != seen; });
        seen = generation_;
        if (stop_) return;
        body = body_;
      }
      if (index < active_) (*body)(index);
      running_.fetch_sub(1, std::memory_order_release);
    }
  }

  const int size_;
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  uint64_t generation_ = 0;
  bool stop_ = false;
  const std::function<void(int)>* body_ = nullptr;
  int active_ = 1;  // changes between runs only
  alignas(64) std::atomic<int> running_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  alignas(64) std::atomic<int> next_{0};
};

}  // namespace octavo
