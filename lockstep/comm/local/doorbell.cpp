// SPDX-License-Identifier: BSD-3-Clause
// Spins, yields and sleeps on futexes, and wakes the ranks that sleep.
#include "lockstep/comm/local/doorbell.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lockstep/core/process/spinning.h"

namespace lockstep::local {
namespace {

// About 50 us of spinning, and then about as long again of yielding: longer than the ranks of a
// well-balanced step are apart, shorter than a scheduler's time slice.
constexpr int kSpins = 1000;
constexpr int kYields = 100;
// The first spins skip the pause instruction, which takes as long as a peer's store to arrive.
constexpr int kEagerSpins = 50;
// How long to sleep on one doorbell while the others may ring unnoticed.
constexpr std::chrono::milliseconds kWithoutWaitv(1);

// A shared futex, not a private one: the word lies in memory of several processes.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value,
                std::chrono::milliseconds at_most) {
  const timespec span{at_most.count() / 1000, (at_most.count() % 1000) * 1'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &span, nullptr, 0);
}

// False if the system call is not available: before Linux 5.16, or in a container that forbids
// system calls unknown to it.
bool futex_wait_any(const std::vector<futex_waitv>& words, std::chrono::milliseconds at_most) {
  timespec until{};
  ::clock_gettime(CLOCK_MONOTONIC, &until);
  const auto nanoseconds = until.tv_nsec + at_most.count() % 1000 * 1'000'000;
  until.tv_sec += at_most.count() / 1000 + nanoseconds / 1'000'000'000;
  until.tv_nsec = nanoseconds % 1'000'000'000;
  return ::syscall(SYS_futex_waitv, words.data(), words.size(), 0, &until, CLOCK_MONOTONIC) >= 0 ||
         (errno != ENOSYS && errno != EPERM);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// The announced store must be visible before the sleepers are read. Sleep registers before it looks
// for that store, so one of the two sides sees the other.
void make_store_visible() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void wake_sleepers(Doorbell& doorbell) {
  if (doorbell.sleepers.load(std::memory_order_relaxed) == 0) return;
  doorbell.rings.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(doorbell.rings);
}

}  // namespace

void ring(const std::vector<ControlBlock*>& blocks, int self) {
  make_store_visible();
  for (int rank = 0; rank < static_cast<int>(blocks.size()); ++rank) {
    if (rank != self) wake_sleepers(blocks[rank]->doorbell);
  }
}

void ring(ControlBlock& block) {
  make_store_visible();
  wake_sleepers(block.doorbell);
}

bool Patience::pause() {
  const int spins = spin_ ? kSpins : 0;
  if (turns_ >= spins + kYields) return false;
  if (turns_ < spins) {
    if (turns_ >= kEagerSpins) pause_core();
  } else {
    ::sched_yield();
  }
  ++turns_;
  return true;
}

Sleep::Sleep(Doorbell& own, const std::vector<Doorbell*>& others) {
  const auto add = [this](Doorbell* doorbell) {
    bells_.push_back({doorbell, doorbell->rings.load(std::memory_order_relaxed)});
    doorbell->sleepers.fetch_add(1, std::memory_order_seq_cst);
  };
  add(&own);
  for (Doorbell* doorbell : others) add(doorbell);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

Sleep::~Sleep() {
  for (const Bell& bell : bells_) bell.doorbell->sleepers.fetch_sub(1, std::memory_order_relaxed);
}

void Sleep::wait(std::chrono::milliseconds at_most) {
  if (bells_.size() > 1) {
    std::vector<futex_waitv> words;
    for (const Bell& bell : bells_) {
      if (words.size() == FUTEX_WAITV_MAX) break;
      words.push_back({.val = bell.seen,
                       .uaddr = reinterpret_cast<std::uintptr_t>(&bell.doorbell->rings),
                       .flags = FUTEX_32,
                       .__reserved = 0});
    }
    if (futex_wait_any(words, at_most)) return;
    at_most = std::min(at_most, kWithoutWaitv);
  }
  futex_wait(bells_.front().doorbell->rings, bells_.front().seen, at_most);
}

}  // namespace lockstep::local
