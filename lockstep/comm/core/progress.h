// SPDX-License-Identifier: BSD-3-Clause
// What this process has under way on all its groups. A wait on one group advances the others, so
// that a call here and a wait there cannot block each other.
#pragma once

#include <memory>
#include <vector>

namespace lockstep::local {
struct ControlBlock;
}

namespace lockstep {

class Progressing {
 public:
  virtual ~Progressing() = default;

  // Advances what can be advanced without waiting; nothing if another thread is at it. Errors are
  // kept for those that wait. True if anything moved.
  virtual bool try_advance() = 0;
  // Whose bell rings when there may be more to do; null if nothing is under way.
  virtual local::ControlBlock* doorbell_if_busy() = 0;
};

// The list of a process is one for all its threads. These functions are thread-safe.

// Until it is destroyed.
void share_progress(const std::shared_ptr<Progressing>& progressing);
// True if anything moved.
bool advance_others(const Progressing& self);

// What else is under way, kept alive while somebody sleeps for it.
struct OthersBusy {
  std::vector<std::shared_ptr<Progressing>> owners;
  std::vector<local::ControlBlock*> doorbells;
};
OthersBusy others_busy(const Progressing& self);

}  // namespace lockstep
