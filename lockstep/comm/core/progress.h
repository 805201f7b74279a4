// SPDX-License-Identifier: BSD-3-Clause
// The work under way on all groups of this process. A wait on one group advances the others, so
// that a call on one group and a wait on another cannot block each other.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace lockstep {

// A futex in memory that several processes may share. Whoever changes something that the owner may
// wait for increments `rings` and wakes the owner.
struct Doorbell {
  std::atomic<std::uint32_t> rings;
  // How many of the owner's threads sleep, or are about to.
  std::atomic<std::uint32_t> sleepers;
};

class Progressing {
 public:
  virtual ~Progressing() = default;

  // Advances as far as possible without waiting; does nothing if another thread is doing so. Errors
  // are kept for the callers that wait. True if anything moved.
  virtual bool try_advance() = 0;
  // The doorbell that rings when there may be more to do; null if nothing is under way, or
  // nothing rings.
  virtual Doorbell* doorbell_if_busy() = 0;
};

// A process has one list, shared by all threads. These functions are thread-safe.

// Keeps the object on the list until it is destroyed.
void share_progress(const std::shared_ptr<Progressing>& progressing);
// True if anything moved.
bool advance_others(const Progressing& self);

// What else is under way, kept alive while a thread sleeps on its doorbells.
struct OthersBusy {
  std::vector<std::shared_ptr<Progressing>> owners;
  std::vector<Doorbell*> doorbells;
};
OthersBusy others_busy(const Progressing& self);

}  // namespace lockstep
