// SPDX-License-Identifier: BSD-3-Clause
// Public. Batch normalization over the batches of all ranks, like torch.nn.SyncBatchNorm: for ranks
// whose own batches are too small for good statistics.
//
//   lockstep::convert_sync_batchnorm(net, group->split(all_ranks));
//   auto model = lockstep::DistributedDataParallel(net, group);
#pragma once

#include <memory>
#include <ostream>
#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include "lockstep/comm/group_argument.h"
#include "lockstep/parallel/parallel_module.h"

namespace lockstep {

// In training mode, forward normalizes with the mean and the variance of all ranks' batches, and
// running_mean and running_var follow these. Outputs, gradients and running statistics are the same
// as with a BatchNorm of one process that computes the whole batch; the gradients of weight and
// bias are this rank's terms, as for any parameter. In evaluation mode, with a group of one, or
// without a group, it is libtorch's BatchNorm.
//
// Inputs have the shape {N, C, ...} with C == num_features. N and the sizes after C may differ
// between ranks, and N may be 0. Statistics are computed in double for double, otherwise in float.
//
// Forward in training mode is a collective call, blocking, also under NoGradGuard and no_sync(); so
// is backward, if the input requires grad, which it must on all ranks or on none. The rules of
// lockstep/parallel/functional.h for collective calls beside a DistributedDataParallel apply: if
// ranks may use different parameters, the layers need a group of their own (group->split). With
// such a group, their calls in backward also overtake the buckets of gradients that are under way,
// which is faster between machines. Within join() or the replicas of a DataParallel, it cannot be
// used.
//
// UsageError for an input of another shape; on every rank if all ranks' batches together have fewer
// than two values per channel, or if ranks have different numbers of channels; in backward for
// create_graph. Errors of the group as for any call.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  // The options of BatchNorm, or num_features. convert_sync_batchnorm can give it the group later.
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& norm_options,
                             GroupArgument group = nullptr);

  at::Tensor forward(const at::Tensor& input);

  // Null until it has one. Clones share it.
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }

  void reset() override;
  void reset_running_stats();
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  // As in BatchNorm. Without affine or track_running_stats, their tensors are undefined.
  torch::nn::BatchNormOptions options;
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor running_mean;
  at::Tensor running_var;
  at::Tensor num_batches_tracked;

 private:
  friend void convert_sync_batchnorm(torch::nn::Module& net, GroupArgument group);

  struct InPlaceOf {};
  template <class BatchNormImpl>
  SyncBatchNormImpl(InPlaceOf /*tag*/, const BatchNormImpl& norm);
  // Shares the tensors of a BatchNorm; null for any other module.
  static std::shared_ptr<SyncBatchNormImpl> in_place_of(const torch::nn::Module& module);

  void check(const at::Tensor& input) const;

  std::shared_ptr<ProcessGroup> group_;
};
TORCH_MODULE(SyncBatchNorm);

// Replaces each BatchNorm1d, 2d and 3d in the net's torch::nn::Sequentials, at any depth, by a
// SyncBatchNorm of this group, and gives the group to each SyncBatchNorm of the net. Options, mode,
// parameters and buffers stay: they are the same tensors, so existing optimizers keep working.
//
// UsageError, naming them, if the net has a BatchNorm that cannot be replaced; nothing is changed
// then. These are members such as `torch::nn::BatchNorm2d norm`, which C++ code calls by their
// type, and those in a ModuleList or of TorchScript. Declare such a member as
// lockstep::SyncBatchNorm instead.
//
// Not a collective call, but every rank makes it, before the net is wrapped. A group of the layers'
// own (group->split of all ranks) hides more communication than the group that reduces gradients.
void convert_sync_batchnorm(torch::nn::Module& net, GroupArgument group);
template <ModuleHolder Net>
void convert_sync_batchnorm(const Net& net, GroupArgument group) {
  convert_sync_batchnorm(*net.ptr(), std::move(group));
}

}  // namespace lockstep
