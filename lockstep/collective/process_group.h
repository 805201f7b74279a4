// SPDX-License-Identifier: BSD-3-Clause
// Ranks that run collectives together, as torch.distributed's ProcessGroup.
//
// Every rank of a group makes the same calls in the same order. A call returns at once with a
// Work; results are there after Work::wait(), and until then the tensors must not be touched.
// Tensors may have any strides and live on any device; lists are reduced as one call. A group may
// be used from several threads, as long as all ranks agree on the order. After an error that is
// not a UsageError about this rank's own arguments, the group is unusable and says so.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/collective/work.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep {

enum class ReduceOp { sum, mean, min, max, product };

std::string_view name(ReduceOp op);

// How ranks are joined into a group, and how long its waits last.
struct GroupOptions {
  // Until when a collective waits for its peers, unless Work::wait says otherwise.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // Where this rank's tensors live; group->device() returns it.
  at::Device device = at::kCPU;
};

struct AllReduceOptions {
  ReduceOp op = ReduceOp::sum;
  // The result is multiplied by it, in the same pass. Only for sums and means of floating types.
  double scale = 1;
};

class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return membership_.rank; }
  int size() const { return membership_.world_size; }
  int local_rank() const { return membership_.local_rank; }
  const Membership& membership() const { return membership_; }
  at::Device device() const { return options_.device; }
  std::chrono::milliseconds timeout() const { return options_.timeout; }

  // "shm", "self", ...
  virtual std::string_view backend() const = 0;

  // Each tensor becomes the reduction of the ranks' tensors, with the same bits on every rank:
  // elements are combined in the order of the ranks. Half types are accumulated in float.
  virtual Work all_reduce(std::vector<at::Tensor> tensors, AllReduceOptions options) = 0;

  // Each tensor becomes root's.
  virtual Work broadcast(std::vector<at::Tensor> tensors, int root) = 0;

  // outputs[r] becomes rank r's input. All have the same shape and type.
  virtual Work all_gather(std::vector<at::Tensor> outputs, at::Tensor input) = 0;

  // The output becomes the reduction of what the ranks hold in inputs[this rank].
  virtual Work reduce_scatter(at::Tensor output, std::vector<at::Tensor> inputs,
                              AllReduceOptions options) = 0;

  // Its Work is done when every rank has called it.
  virtual Work barrier() = 0;

  // A tensor in the memory where this backend reduces fastest, uninitialised. A collective call:
  // every rank asks for the same sizes. The tensor may outlive the group.
  virtual at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) = 0;

  // Ends the group for every rank: whatever waits, and whatever comes later, throws with the
  // reason. May be called from any thread.
  virtual void abort(const std::string& reason) = 0;

  Work all_reduce(const at::Tensor& tensor, AllReduceOptions options = {}) {
    return all_reduce(std::vector{tensor}, options);
  }
  Work broadcast(const at::Tensor& tensor, int root = 0) {
    return broadcast(std::vector{tensor}, root);
  }

 protected:
  ProcessGroup(Membership membership, GroupOptions options)
      : membership_(std::move(membership)), options_(options) {}

 private:
  Membership membership_;
  GroupOptions options_;
};

}  // namespace lockstep
