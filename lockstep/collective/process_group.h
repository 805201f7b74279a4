// SPDX-License-Identifier: BSD-3-Clause
// Ranks that run collectives together, as torch.distributed's ProcessGroup.
//
// Every rank of a group makes the same calls in the same order. A call returns at once with a
// Work; results are there after Work::wait(), and until then the tensors must not be touched.
// Tensors may have any strides and live on any device; lists are reduced as one call. A group may
// be used from several threads, as long as all ranks agree on the order. After an error that is
// not a UsageError about this rank's own arguments, the group is unusable and says so.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/collective/reduce_op.h"
#include "lockstep/collective/work.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep {

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
  // elements are combined in the order of the ranks. Half types are accumulated in float. Means
  // and scales need a floating type; a sum of bools is "or", their product "and".
  Work all_reduce(std::vector<at::Tensor> tensors, AllReduceOptions options = {});
  Work all_reduce(const at::Tensor& tensor, AllReduceOptions options = {});

  // Each tensor becomes root's.
  Work broadcast(std::vector<at::Tensor> tensors, int root);
  Work broadcast(const at::Tensor& tensor, int root);

  // outputs[r] becomes rank r's input. All have the same number of elements and the same type.
  Work all_gather(std::vector<at::Tensor> outputs, const at::Tensor& input);

  // The output becomes the reduction of what the ranks hold in inputs[this rank].
  Work reduce_scatter(const at::Tensor& output, std::vector<at::Tensor> inputs,
                      AllReduceOptions options = {});

  // Its Work is done when every rank has called it.
  virtual Work barrier() = 0;

  // A tensor in the memory where this backend reduces fastest, uninitialised. A collective call:
  // every rank asks for the same sizes. The tensor may outlive the group.
  virtual at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) = 0;

  // Ends the group for every rank: whatever waits, and whatever comes later, throws with the
  // reason. May be called from any thread.
  virtual void abort(const std::string& reason) = 0;

 protected:
  ProcessGroup(Membership membership, GroupOptions options)
      : membership_(std::move(membership)), options_(options) {}

  // What a backend does once the arguments have been checked: tensors are defined and dense, their
  // types and sizes go together, the operation suits the type, the root is a rank.
  virtual Work start_all_reduce(std::vector<at::Tensor> tensors, AllReduceOptions options) = 0;
  virtual Work start_broadcast(std::vector<at::Tensor> tensors, int root) = 0;
  virtual Work start_all_gather(std::vector<at::Tensor> outputs, at::Tensor input) = 0;
  virtual Work start_reduce_scatter(at::Tensor output, std::vector<at::Tensor> inputs,
                                    AllReduceOptions options) = 0;

  // "[shm] all_reduce, rank 1 of 4: ", the beginning of every message about wrong arguments.
  std::string where(std::string_view operation) const;

 private:
  void check(std::string_view operation, const std::vector<at::Tensor>& tensors) const;
  void check_outputs(std::string_view operation, const std::vector<at::Tensor>& tensors) const;
  void check(std::string_view operation, const at::Tensor& tensor, AllReduceOptions options) const;

  Membership membership_;
  GroupOptions options_;
};

}  // namespace lockstep
