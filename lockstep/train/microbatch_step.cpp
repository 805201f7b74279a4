// SPDX-License-Identifier: BSD-3-Clause
// Sums the gradients of all ranks' microbatches.
#include "lockstep/train/microbatch_step.h"

#include <algorithm>
#include <functional>
#include <utility>

#include <ATen/ATen.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/parallel/errors.h"
#include "lockstep/parallel/model_checks.h"
#include "lockstep/train/option_checks.h"

namespace lockstep {

MicrobatchStep::MicrobatchStep(const TrainerOptions& options, ProcessGroup& group,
                               std::shared_ptr<torch::nn::Module> module,
                               std::shared_ptr<DistributedDataParallelBase> model,
                               std::shared_ptr<DataParallelBase> replicas)
    : options_(options),
      group_(group),
      module_(std::move(module)),
      shares_(options, group),
      loop_(options, group, layout_, shares_, {module_, std::move(model), std::move(replicas)}) {}

const MicrobatchPlan& MicrobatchStep::plan_for(const EpochSampler* sampler,
                                               std::optional<std::int64_t> size) {
  if (sampler == nullptr || !size) {
    throw UsageError(trainer_on(group_),
                     sampler == nullptr
                         ? "microbatches are dealt by the sampler, and fit() got none"
                         : "this range does not tell the size of its batches, which is that of a "
                           "microbatch",
                     "give fit() the .sampler of a MemoryLoader, a DataLoader or one of libtorch's "
                     "loaders");
  }
  plan_ = shares_.plan(*size);
  return plan_;
}

void MicrobatchStep::renew() {
  layout_ = GradientLayout(*module_, shares_.measured_ranks(), trainer_on(group_));
  loop_.renew();
  shares_.renew_memory(layout_);
}

void MicrobatchStep::begin(std::int64_t seed, std::int64_t step, std::int64_t samples) {
  loop_.begin(plan_, seed, step, samples);
}

void MicrobatchStep::add(std::function<at::Tensor()> loss, std::int64_t samples) {
  shares_.begin(LoadMeter::Activity::computing);
  loop_.add(std::move(loss), samples);
  shares_.begin(LoadMeter::Activity::other);
}

void MicrobatchStep::set_waiting(bool waits) {
  shares_.begin(waits ? LoadMeter::Activity::data : LoadMeter::Activity::other);
}

void MicrobatchStep::abandon() {
  shares_.forget_step();
  loop_.abandon();
}

at::Tensor MicrobatchStep::finish(bool asks_to_leave) {
  const Partials partials = loop_.partial_sums();
  // The sum overwrites them.
  const NotFinite own = options_.check_finite ? not_finite_in(partials) : NotFinite();
  const at::Tensor sum = sum_gradients(partials, asks_to_leave);
  loop_.share_buffers();
  shares_.end_exchange();
  const at::Tensor numbers = layout_.numbers_in(sum);
  layout_.set_gradients(sum, numbers);
  all_leave_ = layout_.all_leave(numbers);
  // They were divided by the samples, as the gradients.
  const auto samples = static_cast<double>(loop_.samples());
  shares_.decide(layout_.loads(numbers, is_mean() ? samples : 1));
  if (options_.check_finite) require_finite(sum, own);
  return is_mean() ? layout_.loss_in(sum).clone() : layout_.loss_in(sum) / samples;
}

at::Tensor MicrobatchStep::sum_gradients(const Partials& partials, bool asks_to_leave) {
  for (const std::vector<at::Tensor>& of_run : partials) {
    for (const at::Tensor& partial : of_run) layout_.clear_messages(partial);
  }
  const at::Tensor& first = partials.front().front();
  if (asks_to_leave) layout_.ask_to_leave(first);
  shares_.send_load(layout_, first, loop_.planned(),
                    /*is_whole=*/loop_.samples() == plan_.global_batch_size());
  const double scale = is_mean() ? 1.0 / static_cast<double>(loop_.samples()) : 1;
  if (group_.size() == 1) return sum_of_runs(partials, shares_.tree(), loop_.runs(), scale);
  return tree_all_reduce(partials.front(), shares_.tree(), shares_.of_ranks(), group_, scale,
                         shares_.memory());
}

NotFinite MicrobatchStep::not_finite_in(const Partials& partials) const {
  NotFinite found(layout_.parameters().size());
  for (const std::vector<at::Tensor>& of_run : partials) {
    for (const at::Tensor& partial : of_run) {
      const NotFinite in_partial = layout_.not_finite_in(partial);
      std::ranges::transform(found, in_partial, found.begin(), std::bit_or());
    }
  }
  return found;
}

void MicrobatchStep::require_finite(const at::Tensor& sum, const NotFinite& own) {
  const NotFinite found = layout_.not_finite_in(sum);
  if (std::ranges::count(found, 1) == 0) return;
  if (group_.size() == 1) return check_finite_gradients(*module_);
  std::vector<std::string> names;
  for (const auto& [name, parameter] : distinct_named_parameters(*module_)) {
    if (parameter.requires_grad()) names.push_back(name);
  }
  throw NonFiniteGradient(
      ErrorDetails{.cause = describe_not_finite(names, found, own, group_),
                   .remedy = "every rank has this error: lower the learning rate, or look for bad "
                             "values in the data"});
}

std::optional<std::string> MicrobatchStep::change_shares() {
  std::optional<std::string> line = shares_.change(layout_);
  if (line) loop_.renew();
  return line;
}

}  // namespace lockstep
