// SPDX-License-Identifier: BSD-3-Clause
// Public. Collectives that gradients pass through, like torch.distributed.nn.functional: for losses
// over the samples of all ranks, such as contrastive ones.
//
//   auto own = model(images);
//   auto all = torch::cat(lockstep::functional::all_gather(own, group));
//   contrastive_loss(own, all).backward();
//
// Collective calls, blocking, in forward and in backward. Backward gives each rank the gradient of
// the sum of all ranks' losses. DistributedDataParallel then averages: the result is the gradient
// of the mean loss. create_graph is supported. The graph keeps the group alive.
//
// Every rank's backward must reach the same calls: every rank's loss must depend on a result, and
// the input must require grad on all ranks or on none. On one device, autograd then runs them in
// the reverse order of forward.
//
// With a DistributedDataParallel over the same group, make these calls after the model's last
// forward of the step. Their backward then comes before the reduction of any gradient, whichever
// parameters a rank uses. The backward of calls made within or between forwards comes between
// buckets. Give such calls a separate group (group->split) if ranks may use different parameters
// there, or if the model is on several devices. Otherwise the ranks' calls differ, which is a
// UsageError on every rank (on nccl, see process_group.h). Replicas of a DataParallel cannot make
// these calls.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Optional.h>

#include "lockstep/comm/group_argument.h"

namespace lockstep::functional {

// The ranks' tensors in rank order, all of this one's shape and type, in new memory.
std::vector<at::Tensor> all_gather(const at::Tensor& tensor, GroupArgument group);

// The reduction of the ranks' tensors, as a new tensor. UsageError if a gradient would have to pass
// through an operation other than sum and mean.
at::Tensor all_reduce(const at::Tensor& tensor, GroupArgument group, ReduceOp op = ReduceOp::sum);

struct GradOptions {
  // As in torch::autograd::grad. An undefined gradient of an output stands for ones.
  std::vector<at::Tensor> grad_outputs = {};
  c10::optional<bool> retain_graph = {};
  // The means then have a history, and backward through them gives the gradient as above.
  bool create_graph = false;
  // An input that this rank's outputs do not depend on counts as zeros; otherwise it is an error.
  bool allow_unused = false;
};

// The means over the ranks of torch::autograd::grad, in the order of the inputs, the same on every
// rank. torch::autograd::grad itself gives each rank its own gradients, also through a
// DistributedDataParallel, whose reduction begins in backward(). Every rank passes inputs of the
// same shapes and types, such as the model's parameters. .grad is neither read nor written.
std::vector<at::Tensor> grad(const std::vector<at::Tensor>& outputs,
                             const std::vector<at::Tensor>& inputs, GroupArgument group,
                             const GradOptions& options = {});

}  // namespace lockstep::functional
