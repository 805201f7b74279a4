// SPDX-License-Identifier: BSD-3-Clause
// What a Trainer with .microbatches sets in libtorch while it trains. In a file of its own since
// tools and tests of single operators need it without a Trainer.
#pragma once

namespace lockstep {

// While an object lives, the operators that its thread calls use one thread and deterministic
// algorithms; libtorch throws for an operator that has none. Of several objects, as ranks that are
// threads have, the first makes the settings of the process, and the last one restores them. Each
// sets the number of threads of its own thread. Destroy it in the thread that made it.
class DeterministicMode {
 public:
  DeterministicMode();
  DeterministicMode(const DeterministicMode&) = delete;
  DeterministicMode& operator=(const DeterministicMode&) = delete;
  ~DeterministicMode();

 private:
  int threads_before_;  // of this thread
};

}  // namespace lockstep
