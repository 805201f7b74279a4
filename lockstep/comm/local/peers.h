// SPDX-License-Identifier: BSD-3-Clause
// The other ranks of a group whose memory this rank can reach: processes that share mappings, or
// threads of one process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/core/task_engine.h"
#include "lockstep/comm/local/control_block.h"
#include "lockstep/core/deadline.h"

namespace lockstep::local {

// A tensor from `empty` that is being made. There are two steps, so that a rank without memory
// reports it before any rank waits for that rank.
class NewTensor {
 public:
  virtual ~NewTensor() = default;

  // Blocks until every rank has made its part. `segment` numbers the tensor, the same on every
  // rank. TimeoutError and PeerLost name the peer.
  virtual at::Tensor share(std::uint64_t segment, const Deadline& deadline) = 0;
};

class Peers {
 public:
  enum class State { here, left, failed, lost };

  Peers(int rank, std::string_view backend) : rank_(rank), backend_(backend) {}
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;
  // Tells the peers that this rank leaves.
  virtual ~Peers() = default;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(blocks_.size()); }
  std::string_view backend() const { return backend_; }
  // Every rank's block, by rank.
  const std::vector<ControlBlock*>& blocks() const { return blocks_; }
  ControlBlock& own() const { return *blocks_[rank_]; }

  // The ranks' process ids; none if the ranks are threads.
  virtual std::vector<int> pids() const { return {}; }
  // "rank 3 (pid 4711)"
  virtual std::string name(int rank) const = 0;
  // What became of a peer. `left`: it said farewell. `failed`: it said farewell during an
  // exception. `lost`: anything else.
  virtual State state(int rank) const = 0;
  // Tells the peers that an exception ends this rank.
  virtual void leave_failing() = 0;

  // Where all ranks can reach these bytes of this rank; segment 0 if they cannot.
  virtual Location location_of(const void* data, std::int64_t bytes) const = 0;
  // A peer's bytes, as this rank sees them. Valid only while a tensor of this rank lies in the same
  // segment.
  virtual std::byte* address(int rank, const Location& location) const = 0;
  // Addresses in this process, by rank, of every rank's bytes at the same place of the same
  // segment. Valid until this rank's tensor there is gone. Empty if they are not mapped, or if a
  // mapping ends with its rank.
  virtual std::vector<std::byte*> symmetric_memory(const void*, std::int64_t) const { return {}; }

  // Keeps a task of a group that failed. A peer that does not know of the failure may still access
  // the task's tensor in place. Shared memory stays mapped there; memory of this process must be
  // kept.
  virtual void keep(std::shared_ptr<Task>) {}

  // BackendError if there is not enough memory.
  virtual std::unique_ptr<NewTensor> new_tensor(at::IntArrayRef sizes,
                                                const at::TensorOptions& options) = 0;

  // A tensor in memory of rank 0 that all ranks map. Null if the ranks are no processes.
  virtual std::unique_ptr<NewTensor> new_common_tensor(at::IntArrayRef, const at::TensorOptions&) {
    return {};
  }

 protected:
  void set_blocks(std::vector<ControlBlock*> blocks) { blocks_ = std::move(blocks); }

 private:
  int rank_;
  std::string backend_;
  std::vector<ControlBlock*> blocks_;
};

}  // namespace lockstep::local
