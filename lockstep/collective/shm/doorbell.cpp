// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/collective/shm/doorbell.h"

#include <climits>
#include <ctime>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lockstep::shm {
namespace {

// About 50 us of spinning, and then about as long again of yielding: longer than the ranks of a
// well-balanced step are apart, shorter than a scheduler's time slice.
constexpr int kSpins = 1000;
constexpr int kYields = 100;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Shared, not private: the word lies in memory of several processes.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value,
                std::chrono::milliseconds at_most) {
  const timespec span{at_most.count() / 1000, (at_most.count() % 1000) * 1'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &span, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

void ring(const std::vector<ControlBlock*>& blocks, int self) {
  // The store that is announced must be visible before the sleepers are read, as Sleep registers
  // before it looks for that store: one of the two sides sees the other.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int rank = 0; rank < static_cast<int>(blocks.size()); ++rank) {
    if (rank == self || blocks[rank]->sleepers.load(std::memory_order_relaxed) == 0) continue;
    blocks[rank]->doorbell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(blocks[rank]->doorbell);
  }
}

bool Patience::pause() {
  const int spins = spin_ ? kSpins : 0;
  if (turns_ >= spins + kYields) return false;
  if (turns_ < spins) {
    relax();
  } else {
    ::sched_yield();
  }
  ++turns_;
  return true;
}

Sleep::Sleep(ControlBlock& own) : own_(own), seen_(own.doorbell.load(std::memory_order_relaxed)) {
  own_.sleepers.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

Sleep::~Sleep() {
  own_.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

void Sleep::wait(std::chrono::milliseconds at_most) {
  futex_wait(own_.doorbell, seen_, at_most);
}

}  // namespace lockstep::shm
