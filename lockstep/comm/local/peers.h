// SPDX-License-Identifier: BSD-3-Clause
// The other ranks of a group whose memory this rank can reach: processes that share mappings, or
// threads of one process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/local/control_block.h"
#include "lockstep/comm/core/task.h"
#include "lockstep/core/deadline.h"

namespace lockstep::local {

// A tensor from `empty` on its way. Made in two steps, so that a rank that finds no memory says so
// before anyone waits for it.
class NewTensor {
 public:
  virtual ~NewTensor() = default;

  // Blocks until every rank has made its part. `segment` numbers it, the same on every rank.
  // TimeoutError and PeerLost name the peer.
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

  // The processes of the ranks; none where they are threads.
  virtual std::vector<int> pids() const { return {}; }
  // "rank 3 (pid 4711)"
  virtual std::string name(int rank) const = 0;
  // What became of a peer. `left` is a proper farewell, `failed` one amid an exception, `lost`
  // everything else.
  virtual State state(int rank) const = 0;
  // Tells the peers that an exception ends this rank.
  virtual void leave_failing() = 0;

  // Where all ranks can reach these bytes of this rank; segment 0 if they cannot.
  virtual Location location_of(const void* data, std::int64_t bytes) const = 0;
  // A peer's bytes, as this rank sees them. Only while a tensor of this rank's own lies in the same
  // segment.
  virtual std::byte* address(int rank, const Location& location) const = 0;

  // Of a group that failed: a peer that does not know it yet may still read and write the task's
  // tensor where it lies. Shared memory stays mapped there; memory of this process has to be kept.
  virtual void keep(std::shared_ptr<Task>) {}

  // BackendError if there is no memory for it.
  virtual std::unique_ptr<NewTensor> new_tensor(at::IntArrayRef sizes,
                                                const at::TensorOptions& options) = 0;

 protected:
  void set_blocks(std::vector<ControlBlock*> blocks) { blocks_ = std::move(blocks); }

 private:
  int rank_;
  std::string backend_;
  std::vector<ControlBlock*> blocks_;
};

}  // namespace lockstep::local
