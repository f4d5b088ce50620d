// The threads that share one kernel's work: those that torch's own OpenMP runtime keeps for the calling thread.
//
// Between two products of torch these threads spin on their cores and wait for more. Threads of our own would have to
// push them aside, kernel by kernel; these take up our work within microseconds. We link no OpenMP: the address of the
// runtime's entry comes from the process that we are loaded into. Where there is none, our own pool does the work.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>

#include "pool.hpp"

namespace octavo {

// GOMP_parallel, as GNU's, LLVM's and Intel's runtimes have it: function, its argument, number of threads, flags.
using OpenMpParallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

struct Team {
  int threads;
  OpenMpParallel parallel;  // or null
};

// Runs task(0) .. task(count - 1), handed out one by one; returns when all have ended. The runtime may give fewer
// threads than asked for, so a task must not wait for another one.
template <class F>
void share(const Team& team, int count, const F& task) {
  std::atomic<int> next{0};
  auto work = [&] {
    for (int i = next++; i < count; i = next++) task(i);
  };
  const int threads = team.threads < count ? team.threads : count;
  if (threads <= 1) return work();
  if (team.parallel != nullptr) {
    using Work = decltype(work);
    const auto enter = [](void* data) { (*static_cast<Work*>(data))(); };
    return team.parallel(enter, &work, static_cast<unsigned>(threads), 0);
  }
  static std::mutex one_at_a_time;
  static std::unique_ptr<Pool> pool;
  std::lock_guard<std::mutex> lock(one_at_a_time);
  if (pool == nullptr || pool->size() != team.threads) pool = std::make_unique<Pool>(team.threads);
  pool->run([&](int) { work(); }, threads);
}

}  // namespace octavo
