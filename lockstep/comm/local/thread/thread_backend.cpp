// SPDX-License-Identifier: BSD-3-Clause
// Joins threads of one process, as each other's peers, into a group and its subgroups.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "lockstep/comm/core/make_backends.h"
#include "lockstep/comm/local/doorbell.h"
#include "lockstep/comm/local/local_backend.h"
#include "lockstep/comm/local/peers.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/tensor/ordinary_tensor.h"

namespace lockstep::thread {
namespace {

using local::ControlBlock;
using local::Location;

// All memory of a process is one segment; an offset in it is an address.
constexpr std::uint64_t kProcess = 1;

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

World::World(int size) : states_(static_cast<std::size_t>(size)) {
  const std::size_t bytes = (ControlBlock::bytes(size) + alignof(ControlBlock) - 1) /
                            alignof(ControlBlock) * alignof(ControlBlock);
  for (int rank = 0; rank < size; ++rank) {
    void* memory = std::aligned_alloc(alignof(ControlBlock), bytes);
    if (memory == nullptr) throw std::bad_alloc();
    // A block starts as zeros, as shared memory does.
    std::memset(memory, 0, bytes);
    blocks_.push_back(static_cast<ControlBlock*>(memory));
    for (int core : allowed_cores()) CPU_SET(core, &blocks_.back()->cores);
  }
}

World::~World() {
  for (ControlBlock* block : blocks_) std::free(block);
}

void World::leave(int rank, local::Peers::State how) {
  auto here = local::Peers::State::here;
  states_[rank].compare_exchange_strong(here, how, std::memory_order_release);
}

void World::keep(std::shared_ptr<Task> task) {
  const std::lock_guard lock(mutex_);
  kept_.push_back(std::move(task));
}

std::shared_ptr<World> World::part(const std::string& name, int size) {
  const std::lock_guard lock(mutex_);
  Part& part = parts_[name];
  if (!part.world) part = {std::make_shared<World>(size), size};
  std::shared_ptr<World> world = part.world;
  if (--part.missing == 0) parts_.erase(name);
  return world;
}

class NewTensor final : public local::NewTensor {
 public:
  explicit NewTensor(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  at::Tensor share(std::uint64_t, const Deadline&) override { return std::move(tensor_); }

 private:
  at::Tensor tensor_;
};

class ThreadPeers final : public local::Peers {
 public:
  ThreadPeers(std::shared_ptr<World> world, int rank)
      : Peers(rank, "thread"), world_(std::move(world)) {
    set_blocks(world_->blocks());
  }
  ~ThreadPeers() override {
    world_->leave(rank(), State::left);
    local::ring(blocks(), rank());
  }

  std::string name(int rank) const override { return fmt::format("rank {}", rank); }
  State state(int rank) const override { return world_->state(rank); }
  void leave_failing() override { world_->leave(rank(), State::failed); }

  Location location_of(const void* data, std::int64_t) const override {
    return {kProcess, static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(data))};
  }
  std::byte* address(int, const Location& location) const override {
    return reinterpret_cast<std::byte*>(static_cast<std::intptr_t>(location.offset));
  }

  void keep(std::shared_ptr<Task> task) override { world_->keep(std::move(task)); }

  std::unique_ptr<local::NewTensor> new_tensor(at::IntArrayRef sizes,
                                               const at::TensorOptions& options) override {
    return std::make_unique<NewTensor>(ordinary_tensor(sizes, options, size()));
  }

 private:
  std::shared_ptr<World> world_;
};

std::shared_ptr<Backend> join(const std::shared_ptr<World>& world, const Membership& membership,
                              const GroupOptions& options) {
  if (membership.world_size == 1) return make_self_backend(membership, options);
  const auto subgroup = [world](const std::string& name, const Membership& member,
                                const GroupOptions& settings) {
    return join(world->part(name, member.world_size), member, settings);
  };
  return local::make_local_backend(std::make_unique<ThreadPeers>(world, membership.rank),
                                   membership, options, subgroup);
}

}  // namespace
}  // namespace lockstep::thread

namespace lockstep {

std::function<std::shared_ptr<Backend>(const Membership& membership, const GroupOptions& options)>
join_threads(int size) {
  return [world = std::make_shared<thread::World>(size)](const Membership& membership,
                                                         const GroupOptions& options) {
    return thread::join(world, membership, options);
  };
}

}  // namespace lockstep
