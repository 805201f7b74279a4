// SPDX-License-Identifier: BSD-3-Clause
// How a rank waits for its peers: it spins, then yields, then sleeps on its doorbell.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "lockstep/comm/local/control_block.h"

namespace lockstep::local {

// Wakes every listed rank that sleeps. Called after stores that a peer may wait for.
void ring(const std::vector<ControlBlock*>& blocks, int self);
// The same for one rank.
void ring(ControlBlock& block);

// One wait of one thread. Say progress() when something moved; pause() when nothing did. Spinning
// costs a core that another rank may need, so where there are more ranks than cores it is left out.
class Patience {
 public:
  explicit Patience(bool spin) : spin_(spin) {}

  void progress() { turns_ = 0; }
  // Spins or yields; false when it is time to sleep instead.
  bool pause();

 private:
  bool spin_;
  int turns_ = 0;
};

// Registers this thread as a sleeper. Look once more for progress after making one: what came
// before is seen then, and what comes later rings.
class Sleep {
 public:
  // On this rank's own bell, and on its bells in other groups.
  Sleep(ControlBlock& own, const std::vector<ControlBlock*>& others);
  ~Sleep();
  Sleep(const Sleep&) = delete;
  Sleep& operator=(const Sleep&) = delete;

  // Sleeps until one of them rings, or that long.
  void wait(std::chrono::milliseconds at_most);

 private:
  struct Bell {
    ControlBlock* block;
    std::uint32_t seen;
  };
  std::vector<Bell> bells_;
};

}  // namespace lockstep::local
