// SPDX-License-Identifier: BSD-3-Clause
// A rank's wait for its peers: it spins, then yields, then sleeps on its doorbell.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "lockstep/comm/local/control_block.h"

namespace lockstep::local {

// Wakes every listed rank that sleeps, except `self`. Call it after stores that a peer may wait
// for.
void ring(const std::vector<ControlBlock*>& blocks, int self);
// Wakes one rank if it sleeps.
void ring(ControlBlock& block);

// One wait of one thread. Call progress() when something moved, and pause() when nothing did.
// Spinning takes a core that another rank may need, so it is left out if ranks outnumber cores.
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

// Registers this thread as a sleeper. Check once more for progress after construction: earlier
// changes are visible then, and later ones ring.
class Sleep {
 public:
  // Sleeps on this rank's own doorbell and on its doorbells in other groups.
  Sleep(Doorbell& own, const std::vector<Doorbell*>& others);
  ~Sleep();
  Sleep(const Sleep&) = delete;
  Sleep& operator=(const Sleep&) = delete;

  // Sleeps until one of them rings, or for at most this long.
  void wait(std::chrono::milliseconds at_most);

 private:
  struct Bell {
    Doorbell* doorbell;
    std::uint32_t seen;
  };
  std::vector<Bell> bells_;
};

}  // namespace lockstep::local
