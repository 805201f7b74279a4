// SPDX-License-Identifier: BSD-3-Clause
// Normalizes by libtorch's kernels for fixed statistics: the ranks' statistics are combined first.
#include "lockstep/parallel/normalize_over_ranks.h"

#include <cstdint>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/libtorch_compat.h"

namespace lockstep {
namespace {

constexpr std::string_view kSyncBatchNorm = "SyncBatchNorm";

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// Half types are too coarse for statistics.
at::ScalarType statistics_type(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

std::int64_t values_per_channel(const at::Tensor& input) {
  return input.numel() / input.size(1);
}

// This rank's mean and variance of each channel, and the number of values: {2C + 1}, in double, in
// which the count is exact.
at::Tensor statistics_of_rank(const at::Tensor& input) {
  const std::int64_t channels = input.size(1);
  at::Tensor own = at::zeros({2 * channels + 1}, input.options().dtype(at::kDouble));
  if (input.numel() == 0) return own;
  // The running statistics tell the kernel the type of its results; a momentum of 0 keeps them.
  const auto unused = at::zeros({channels}, input.options().dtype(statistics_type(input)));
  const auto [mean, var] = at::batch_norm_update_stats(input, unused, unused.clone(), 0);
  own.narrow(0, 0, channels).copy_(mean);
  own.narrow(0, channels, channels).copy_(var);
  own[2 * channels].fill_(values_per_channel(input));
  return own;
}

// Combines deviations from means, not sums of squares, which would cancel.
BatchStatistics combined(const at::Tensor& all) {
  const std::int64_t channels = all.size(1) / 2;
  const at::Tensor means = all.narrow(1, 0, channels);
  const at::Tensor vars = all.narrow(1, channels, channels);
  const at::Tensor counts = all.narrow(1, 2 * channels, 1);
  const at::Tensor count = counts.sum();
  const at::Tensor mean = (counts * means).sum(0) / count;
  const at::Tensor var = (counts * (vars + (means - mean).square())).sum(0) / count;
  return {mean, var, count};
}

BatchStatistics statistics_of_all_ranks(const at::Tensor& input, ProcessGroup& group) {
  const CallScope scope(CallOrigin::sync_batch_norm);
  const at::Tensor own = statistics_of_rank(input);
  const at::Tensor all = at::empty({group.size(), own.numel()}, own.options());
  try {
    group.all_gather_into_tensor(all, own).wait();
  } catch (const Error&) {
    rethrow_within(group.context(kSyncBatchNorm, "forward"));
  }
  const BatchStatistics statistics = combined(all);
  // A rank with two values need not wait for its GPU to know that there are enough.
  if (values_per_channel(input) < 2 && statistics.count.item<double>() < 2) {
    throw UsageError(
        group.context(kSyncBatchNorm),
        fmt::format("Expected more than 1 value per channel when training, got {} over all ranks; "
                    "the input of this rank has the sizes {}",
                    statistics.count.item<std::int64_t>(), c10::str(input.sizes())),
        "use larger batches, or call net->eval()");
  }
  return statistics;
}

// (input - mean) / sqrt(var + eps) * weight + bias
at::Tensor normalized(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                      const at::Tensor& mean, const at::Tensor& var, double eps) {
  if (input.numel() == 0) return at::empty_like(input);
  return std::get<0>(at::native_batch_norm(input, weight, bias, mean, var, /*training=*/false,
                                           /*momentum=*/0, eps));
}

class SyncBatchNormNode : public torch::autograd::Node {
 public:
  // The mean and the variance have the statistics' type of the input.
  SyncBatchNormNode(const at::Tensor& input, const at::Tensor& weight, at::Tensor mean,
                    at::Tensor var, at::Tensor count, double eps,
                    std::shared_ptr<ProcessGroup> group)
      : input_(input, /*is_output=*/false),
        weight_(weight, /*is_output=*/false),
        mean_(std::move(mean)),
        var_(std::move(var)),
        count_(std::move(count)),
        eps_(eps),
        group_(std::move(group)) {}

  std::string name() const override { return "LockstepSyncBatchNorm"; }
  variable_list apply(variable_list&& gradients) override;
  void release_variables() override {
    const std::lock_guard lock(mutex_);
    input_.reset_data();
    weight_.reset_data();
  }

 private:
  // What the ranks' statistics contribute to the gradient of the input.
  at::Tensor through_statistics(const at::Tensor& input, const at::Tensor& weight,
                                const at::Tensor& sum, const at::Tensor& dot) const;

  SavedVariable input_;
  SavedVariable weight_;
  at::Tensor mean_;
  at::Tensor var_;
  at::Tensor count_;
  double eps_;
  std::shared_ptr<ProcessGroup> group_;
};

at::Tensor SyncBatchNormNode::through_statistics(const at::Tensor& input, const at::Tensor& weight,
                                                 const at::Tensor& sum,
                                                 const at::Tensor& dot) const {
  const CallScope scope(CallOrigin::sync_batch_norm);
  const at::Tensor sums = at::stack({sum, dot});
  try {
    group_->all_reduce(sums).wait();
  } catch (const Error&) {
    rethrow_within(group_->context(kSyncBatchNorm, "backward"));
  }
  const at::Tensor scale = weight * (var_ + eps_).rsqrt() / -count_;
  return normalized(input, scale * sums[1], scale * sums[0], mean_, var_, eps_);
}

variable_list SyncBatchNormNode::apply(variable_list&& gradients) {
  if (at::GradMode::is_enabled()) {
    throw UsageError(group_->context(kSyncBatchNorm),
                     "backward with create_graph=true is not supported: gradients of gradients "
                     "cannot pass through other ranks' statistics",
                     "compute them on a net that has BatchNorms, or in evaluation mode");
  }
  const std::lock_guard lock(mutex_);
  const at::ScalarType type = mean_.scalar_type();
  const at::Tensor input = input_.unpack().to(type);
  const at::Tensor saved_weight = weight_.unpack();
  const at::Tensor weight = saved_weight.defined() ? saved_weight.to(type) : at::ones_like(mean_);
  const at::Tensor gradient =
      gradients[0].defined() ? gradients[0].to(type) : at::zeros_like(input);

  const bool wants_input = should_compute_output(0);
  at::Tensor of_input = at::empty_like(input);
  at::Tensor dot = at::zeros_like(mean_);  // of the gradient and the normalized input
  at::Tensor sum = at::zeros_like(mean_);
  if (input.numel() > 0) {
    // On GPUs it wants saved statistics, and takes the others if these are empty.
    const at::Tensor none = at::empty({0}, mean_.options());
    std::tie(of_input, dot, sum) =
        at::native_batch_norm_backward(gradient, input, weight, mean_, var_, none, none,
                                       /*train=*/false, eps_, {wants_input, true, true});
  }
  if (wants_input) of_input.add_(through_statistics(input, weight, sum, dot));
  return {of_input, dot, sum};
}

}  // namespace

NormalizedBatch normalize_over_ranks(const at::Tensor& input, const at::Tensor& weight,
                                     const at::Tensor& bias, double eps,
                                     std::shared_ptr<ProcessGroup> group) {
  NormalizedBatch batch;
  at::Tensor mean;
  at::Tensor var;
  {
    const at::NoGradGuard no_grad;
    batch.statistics = statistics_of_all_ranks(input, *group);
    const at::ScalarType type = statistics_type(input);
    const auto converted = [&](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.to(type) : tensor;
    };
    mean = converted(batch.statistics.mean);
    var = converted(batch.statistics.var);
    batch.output = normalized(input, converted(weight), converted(bias), mean, var, eps);
  }
  if (torch::autograd::compute_requires_grad(input, weight, bias)) {
    const libtorch::NodePointer node =
        libtorch::make_node<SyncBatchNormNode>(input, weight, std::move(mean), std::move(var),
                                               batch.statistics.count, eps, std::move(group));
    node->set_next_edges(torch::autograd::collect_next_edges(input, weight, bias));
    torch::autograd::set_history(batch.output, node);
  }
  return batch;
}

}  // namespace lockstep
