// SPDX-License-Identifier: BSD-3-Clause
// Asks which ranks have which part of the state. What one of them has whole is the truth: no update
// has begun since. Otherwise, those that map each other's shares recover it together.
#include "lockstep/train/optimizer_shards.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "lockstep/comm/objects.h"
#include "lockstep/comm/types/call_origin.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/parallel/one_copy.h"

namespace lockstep {
namespace {

void copy_options(torch::optim::Optimizer& from, torch::optim::Optimizer& to) {
  for (std::size_t i = 0; i < from.param_groups().size(); ++i) {
    to.param_groups()[i].set_options(from.param_groups()[i].options().clone());
  }
}

}  // namespace

void OptimizerShards::use(Make make, bool shards) {
  make_ = std::move(make);
  shards_ = shards;
  shards_ = sharded() != nullptr;
}

// Null while the step has an optimizer of libtorch.
optim::ShardedOptimizer* OptimizerShards::sharded() const {
  if (!shards_) return nullptr;
  return dynamic_cast<optim::ShardedOptimizer*>(&step_.optimizer());
}

bool OptimizerShards::are_divided() const {
  return sharded() != nullptr && sharded()->is_sharded();
}

void OptimizerShards::begin(std::int64_t steps, const ProcessGroup& group) {
  first_step_ = steps;
  rank_ = group.rank();
  ranks_ = group.size();
}

void OptimizerShards::gather(ProcessGroup& group) {
  take_back();
  optim::ShardedOptimizer* const shares = sharded();
  if (shares == nullptr) return;
  const bool recovers = shares->is_sharded() && shares->can_recover();
  step_.exchange_optimizer(recovers ? shares->recover(group).state : shares->whole_state());
}

OptimizerShards::Recovered OptimizerShards::recover(ProcessGroup& group, bool has_state) {
  if (!shards_) return {.has_state = has_state};
  const CallScope scope(CallOrigin::trainer);
  take_back();
  const Rank own{.holding = holding(has_state), .rank = rank_, .ranks = ranks_};
  const std::vector<Rank> all = all_gather_object(own, group);
  const Holding most = std::ranges::max(all, {}, &Rank::holding).holding;
  std::optional<std::int64_t> steps;
  if (most == Holding::mapped_share) steps = recover_from(all, group);
  if (own.holding == Holding::whole && sharded() != nullptr) {
    step_.exchange_optimizer(sharded()->whole_state());
  }
  const bool has_whole = own.holding == Holding::whole || steps;
  if (!has_whole) take_without_state();
  Recovered made{.has_state = has_whole, .steps = steps, .is_lost = most == Holding::share};
  const auto with_share = std::ranges::find(all, Holding::share, &Rank::holding);
  for (int rank = 0; made.is_lost && rank < with_share->ranks; ++rank) {
    const auto is_it = [&](const Rank& other) {
      return other.holding == Holding::share && other.rank == rank;
    };
    if (std::ranges::none_of(all, is_it)) made.lost_ranks.push_back(rank);
  }
  return made;
}

OptimizerShards::Holding OptimizerShards::holding(bool has_state) const {
  if (!has_state) return Holding::nothing;
  if (!are_divided()) return Holding::whole;
  return sharded()->can_recover() ? Holding::mapped_share : Holding::share;
}

// Returns how many steps the state contains; nullopt on a rank that had no share.
std::optional<std::int64_t> OptimizerShards::recover_from(const std::vector<Rank>& all,
                                                          ProcessGroup& group) {
  std::vector<int> with_share;
  for (int rank = 0; rank < group.size(); ++rank) {
    const Holding holding = all[static_cast<std::size_t>(rank)].holding;
    if (holding == Holding::mapped_share) with_share.push_back(rank);
  }
  const bool all_have = with_share.size() == all.size();
  GroupArgument survivors = all_have ? GroupArgument(group) : group.split(with_share);
  if (!survivors.shared()) return {};
  optim::RecoveredOptimizer recovered = sharded()->recover(std::move(survivors));
  step_.exchange_optimizer(std::move(recovered.state));
  return first_step_ + recovered.steps;
}

// Everything is as before divide(), or before another rank was to give its state.
void OptimizerShards::take_back() {
  if (own_share_) step_.exchange_optimizer(std::move(own_share_));
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> weights = std::exchange(kept_weights_, {});
  if (!weights.empty()) {
    const std::vector<at::Tensor> parameters = distinct_parameters(step_.module());
    for (std::size_t i = 0; i < weights.size(); ++i) parameters[i].set_data(weights[i]);
  }
  if (!kept_state_) return;
  copy_options(step_.optimizer(), *kept_state_);
  step_.exchange_optimizer(std::move(kept_state_));
}

void OptimizerShards::take_without_state() {
  optim::ShardedOptimizer* const shares = sharded();
  if (shares == nullptr) return;
  const bool is_divided = shares->is_sharded();
  auto former = step_.exchange_optimizer(shares->without_state());
  if (is_divided) own_share_ = std::move(former);
  for (const at::Tensor& parameter : distinct_parameters(step_.module())) {
    leave_one_copy(parameter);
  }
}

// These are the tensors in which the weights live now; wrapping gives the parameters others.
void OptimizerShards::keep_weights() {
  if (!shards_ || sharded() != nullptr) return;
  kept_weights_.clear();
  for (const at::Tensor& parameter : distinct_parameters(step_.module())) {
    kept_weights_.push_back(parameter.variable_data());
  }
}

void OptimizerShards::divide(std::int64_t steps, const ProcessGroup& group) {
  if (!shards_ || sharded() != nullptr) return;
  auto divided = make_();
  auto& shares = dynamic_cast<optim::ShardedOptimizer&>(*divided);
  auto whole = shares.without_state();
  copy_options(step_.optimizer(), *whole);
  for (const auto& [key, state] : step_.optimizer().state()) whole->state()[key] = state->clone();
  shares.load_whole(std::move(whole));
  kept_state_ = step_.exchange_optimizer(std::move(divided));
  own_share_.reset();
  begin(steps, group);
}

void OptimizerShards::begin_update() {
  kept_weights_.clear();
  kept_state_.reset();
}

}  // namespace lockstep
