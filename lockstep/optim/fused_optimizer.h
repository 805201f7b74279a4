// SPDX-License-Identifier: BSD-3-Clause
// The members of FusedOptimizer, for the files that instantiate it: its constructors and its step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/algorithm.h"
#include "lockstep/optim/dense_parameter.h"
#include "lockstep/optim/flat_parameters.h"
#include "lockstep/optim/fused_optimizer_recovery.h"
#include "lockstep/optim/fused_optimizer_state.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/optim/parameter_groups.h"
#include "lockstep/optim/update_log.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/parallel/divided_reduction.h"
#include "lockstep/parallel/finite_gradients.h"
#include "lockstep/parallel/model_agreement.h"
#include "lockstep/parallel/one_copy.h"

namespace lockstep::optim {

template <class Base, class Options, class State>
FusedOptimizer<Base, Options, State>::FusedOptimizer(
    std::vector<torch::optim::OptimizerParamGroup> groups, Options defaults)
    : Base(without_repeats(Algorithm<State>::name(), std::move(groups)), std::move(defaults)) {}

template <class Base, class Options, class State>
FusedOptimizer<Base, Options, State>::FusedOptimizer(std::vector<at::Tensor> parameters,
                                                     Options defaults)
    : FusedOptimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                     std::move(defaults)) {}

template <class Base, class Options, class State>
FusedOptimizer<Base, Options, State>::FusedOptimizer(
    std::vector<torch::optim::OptimizerParamGroup> groups, Options defaults, GroupArgument group)
    : FusedOptimizer(std::move(groups), std::move(defaults)) {
  shard(std::move(group));
}

template <class Base, class Options, class State>
FusedOptimizer<Base, Options, State>::FusedOptimizer(std::vector<at::Tensor> parameters,
                                                     Options defaults, GroupArgument group)
    : FusedOptimizer(std::move(parameters), std::move(defaults)) {
  shard(std::move(group));
}

template <class Base, class Options, class State>
FusedOptimizer<Base, Options, State>::FusedOptimizer(
    std::vector<torch::optim::OptimizerParamGroup> groups, Options defaults,
    DistributedDataParallelBase& model)
    : FusedOptimizer(std::move(groups), std::move(defaults)) {
  reduction_ = model.divided_reduction();
  shard(model.group(), model.ranks_with_one_copy());
}

template <class Base, class Options, class State>
FusedOptimizer<Base, Options, State>::FusedOptimizer(DistributedDataParallelBase& model,
                                                     Options defaults)
    : FusedOptimizer({torch::optim::OptimizerParamGroup(distinct_parameters(model))},
                     std::move(defaults), model) {}

template <class Base, class Options, class State>
FusedOptimizer<Base, Options, State>::FusedOptimizer(FusedOptimizer&&) noexcept = default;

template <class Base, class Options, class State>
FusedOptimizer<Base, Options, State>::~FusedOptimizer() = default;

template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::shard(GroupArgument group,
                                                 std::shared_ptr<ProcessGroup> host) {
  const CallScope scope(CallOrigin::making_optimizer);
  ProcessGroup& ranks = group.get();
  if (ranks.size() == 1) return;
  check_agreement(ranks, Algorithm<State>::name(), detail::describe<Options, State>(*this),
                  "optimizer");
  require_separate_memory(Algorithm<State>::name(), *this);
  compared_options_ = detail::options_of_groups<Options>(*this);
  group_ = group.shared();
  host_ = std::move(host);
  if (!host_ && std::ranges::any_of(parameters_of(*this), has_one_copy)) {
    host_ = ranks_of_host(group_);
  }
  if (reduction_) {
    require_parameters_of(reduction_->buckets(), parameters_of(*this), Algorithm<State>::name());
    reduction_->expect_shares();
  }
  lay_out();
}

// Moves the parameters, unless that has been done. A model knows their places after a backward;
// false before.
template <class Base, class Options, class State>
bool FusedOptimizer<Base, Options, State>::lay_out() {
  if (!flat_) {
    if (reduction_ && !reduction_->buckets().are_complete()) return false;
    auto flat =
        std::make_unique<FlatParameters>(Algorithm<State>::name(), parameters_of(*this), *group_,
                                         host_, reduction_ ? &reduction_->buckets() : nullptr);
    // Survivors on several hosts cannot complete an update, and need no log for it.
    if (flat->have_one_copy() && host_ == group_) {
      State empty;
      const auto kinds = static_cast<int>(Algorithm<State>::tensors(empty).size());
      log_ = std::make_unique<UpdateLog>(*group_, *flat, kinds);
    }
    flat_ = std::move(flat);
    if (flat_->reaches_gradients()) reduction_->defer_shares();
  }
  if (loaded_) take_own_parts();
  return true;
}

template <class Base, class Options, class State>
at::Tensor FusedOptimizer<Base, Options, State>::step(
    torch::optim::Optimizer::LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  update(1);
  return loss;
}

template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::step_unscaling(double gradient_factor) {
  update(gradient_factor);
}

template <class Base, class Options, class State>
bool FusedOptimizer<Base, Options, State>::gradients_are_finite() {
  require_updatable(Algorithm<State>::name(), *this);
  const at::NoGradGuard no_grad;
  const bool is_divided = group_ && reduction_ && reduction_->divides();
  if (!is_divided) return all_finite(gradients_of(parameters_of(*this)));
  reduction_->reduce_shares();
  std::vector<at::Tensor> own;
  for (std::size_t bucket = 0; is_laid_out() && bucket < flat_->buckets(); ++bucket) {
    for (const ParameterPart& part : flat_->own_parts(bucket)) {
      if (!part.parameter.grad().defined()) continue;
      own.push_back(DenseParameter(part.parameter, part.range).gradient());
    }
  }
  const CallScope scope(CallOrigin::optimizer_step);
  const at::Tensor vote = at::full({1}, all_finite(own) ? 1 : 0, at::kByte);
  group_->all_reduce(vote, ReduceOp::min).wait();
  return vote.item<std::uint8_t>() != 0;
}

template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::update(double gradient_factor) {
  require_updatable(Algorithm<State>::name(), *this);
  const at::NoGradGuard no_grad;
  if (group_) return update_own_parts(gradient_factor);
  require_own_copies(Algorithm<State>::name(), *this);
  for (auto& group : this->param_groups()) {
    Updates<Options, State> updates(*this, group.options(), gradient_factor);
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) updates.add(DenseParameter(parameter));
    }
    updates.finish();
  }
}

template <class Base, class Options, class State>
ErrorContext FusedOptimizer<Base, Options, State>::context() const {
  return group_->context(Algorithm<State>::name());
}

// False if there is nothing to update yet.
template <class Base, class Options, class State>
bool FusedOptimizer<Base, Options, State>::is_laid_out() {
  if (lay_out()) return true;
  if (gradients_of(parameters_of(*this)).empty()) return false;
  throw UsageError(context(), kNotReduced, remedy_of_not_reduced("step()"));
}

template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::require_groups_as_divided() const {
  if (!flat_ || parameters_of(*this).size() == flat_->parameters()) return;
  throw UsageError(
      context(),
      "a parameter group was added after the parameters had been divided among the ranks",
      "give all groups to the constructor");
}

template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::update_own_parts(double gradient_factor) {
  const CallScope scope(CallOrigin::optimizer_step);
  if (!is_laid_out()) return;
  require_groups_as_divided();
  if (is_recovered_) {
    throw UsageError(context(), "recover() has moved the parameters out of this optimizer's memory",
                     "make a new one, and give it the state by load_whole()");
  }
  flat_->check();
  if (reduction_) reduction_->require_reduced(context());
  compare_ranks();
  consolidated_.reset();
  try {
    update_and_exchange(gradient_factor);
  } catch (const std::exception& error) {
    give_up(short_message(error));
    throw;
  }
}

// The other ranks wait for this rank's part, which will not arrive.
template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::give_up(const std::string& reason) noexcept {
  try {
    group_->abort(context().prefix() + reason);
    if (host_ && host_ != group_) host_->abort(context().prefix() + reason);
  } catch (...) {
    // Then they notice when this rank leaves the group, or at their deadline.
  }
  try {
    flat_->leave_shared_memory();
  } catch (...) {
    // There is no memory to move to; a rank that has not noticed yet may still store values.
  }
}

// Exchanges something only after a load, or if this rank's options have changed since they were
// last compared: ranks that update their parts differently would still have equal parameters.
template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::compare_ranks() {
  const std::string_view name = Algorithm<State>::name();
  if (!loaded_lines_.empty()) {
    check_agreement(*group_, name, std::exchange(loaded_lines_, {}), "optimizer");
  }
  std::vector<Options> options = detail::options_of_groups<Options>(*this);
  if (options == compared_options_) return;
  const std::vector<std::string> lines = detail::describe_options<Options, State>(options);
  try {
    check_agreement(*group_, name, lines, "optimizer");
  } catch (const UsageError& error) {
    throw UsageError(context(),
                     fmt::format("this rank's options have changed, to {}, and every rank's must "
                                 "change alike before the same step: {}",
                                 fmt::join(lines, ", "), error.details().cause),
                     error.details().remedy);
  }
  compared_options_ = std::move(options);
}

template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::update_and_exchange(double gradient_factor) {
  // An optimizer of the whole model may have deferred what this one, of a part, cannot reduce.
  if (reduction_ && !flat_->reaches_gradients()) reduction_->reduce_shares();
  const bool averages = reduction_ && reduction_->take_over_shares();
  if (log_) {
    update_one_copy(gradient_factor, averages);
  } else {
    update_copies(gradient_factor, averages);
  }
  flat_->end_update();
}

template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::update_one_copy(double gradient_factor, bool averages) {
  prepare_logged_update(gradient_factor, averages);
  flat_->begin_update(averages);
  unbegun_.reset();
  log_->begin(flat_->updates());
  for (const UpdateLog::Part& part : log_->parts(group_->rank())) {
    if (part.parameter.grad().defined()) update_logged_part(*this, part);
  }
  for (std::size_t bucket = 0; bucket < flat_->buckets(); ++bucket) flat_->exchange(bucket);
}

template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::update_copies(double gradient_factor, bool averages) {
  std::vector<Updates<Options, State>> updates;
  for (auto& group : this->param_groups()) {
    updates.emplace_back(*this, group.options(), gradient_factor);
  }
  flat_->begin_update(averages);
  for (std::size_t bucket = 0; bucket < flat_->buckets(); ++bucket) {
    for (const ParameterPart& part : flat_->own_parts(bucket)) {
      if (!part.parameter.grad().defined()) continue;
      OtherRanks others{.copies = part.copies};
      if (averages) others.gradients = part.gradients;
      updates[group_of(*this, part.number)].add(DenseParameter(part.parameter, part.range, others));
    }
    for (auto& of_group : updates) of_group.finish();
    flat_->exchange(bucket);
  }
}

}  // namespace lockstep::optim
