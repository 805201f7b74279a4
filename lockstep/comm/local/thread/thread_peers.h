// SPDX-License-Identifier: BSD-3-Clause
// Threads of one process as each other's peers.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/comm/local/peers.h"

namespace lockstep::thread {

// The shared state of one group's ranks. Each rank keeps it alive.
class World {
 public:
  explicit World(int size);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const std::vector<local::ControlBlock*>& blocks() const { return blocks_; }
  // Only a rank's first farewell counts.
  void leave(int rank, local::Peers::State how);
  // Keeps the task until the world ends.
  void keep(std::shared_ptr<Task> task);
  local::Peers::State state(int rank) const {
    return states_[rank].load(std::memory_order_acquire);
  }

  // The world of a subgroup, the same for all its ranks. Each of them asks for it once.
  std::shared_ptr<World> part(const std::string& name, int size);

 private:
  struct Part {
    std::shared_ptr<World> world;
    int missing = 0;  // ranks that have not asked for it
  };

  std::vector<local::ControlBlock*> blocks_;
  std::vector<std::atomic<local::Peers::State>> states_;
  std::mutex mutex_;
  std::map<std::string, Part> parts_;
  std::vector<std::shared_ptr<Task>> kept_;
};

std::unique_ptr<local::Peers> make_thread_peers(std::shared_ptr<World> world, int rank);

}  // namespace lockstep::thread
