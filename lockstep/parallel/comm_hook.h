// SPDX-License-Identifier: BSD-3-Clause
// Public. Communication hooks, like PyTorch's: functions that reduce a bucket of gradients instead
// of all_reduce with ReduceOp::mean. Ready-made ones are in comm_hooks.h.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/types/work.h"

namespace lockstep {

class Bucket;
class ProcessGroup;

// A bucket as a hook sees it. Valid during the call; the tensors stay valid.
class GradBucket {
 public:
  GradBucket(const Bucket& bucket, const ProcessGroup& group, bool updated_in_shares = false)
      : bucket_(bucket), group_(group), updated_in_shares_(updated_in_shares) {}

  // Buckets are reduced in this order on every rank.
  int index() const;
  // Gradients, padding, and a trailer that says which parameters this rank used. 1-D, of a real
  // type. Once the hook's Work is done, every element is the mean over the ranks.
  const at::Tensor& buffer() const;
  // The gradients, as views of the buffer.
  const std::vector<at::Tensor>& gradients() const;
  // A part of the buffer with one element for each gradient: 1 if this rank used the parameter,
  // else 0. After the reduction it is 0 only if no rank did; then the gradient is discarded.
  const at::Tensor& trailer() const;
  // The parameters of these gradients, by their number in the reducer.
  const std::vector<int>& parameters() const;
  // The reducer's group.
  const ProcessGroup& group() const { return group_; }
  // Whether a sharded optimizer was made from the model. Each rank then updates a share of the
  // parameters for all ranks, so the result must be the mean over all of them.
  bool updated_in_shares() const { return updated_in_shares_; }

 private:
  const Bucket& bucket_;
  const ProcessGroup& group_;
  const bool updated_in_shares_;
};

// The result must be the mean, not a sum: what a step accumulates over several backwards is reduced
// after each, and only the mean of means and new gradients is the mean of all.
//
// Called in the order of the buckets, the same on every rank; in the first backward, which makes
// the buckets, each Work is waited for before the next call.
using CommHook = std::function<Work(GradBucket&)>;

}  // namespace lockstep
