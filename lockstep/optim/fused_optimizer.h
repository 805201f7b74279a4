// SPDX-License-Identifier: BSD-3-Clause
// The members of FusedOptimizer, for the files that instantiate it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/optim/algorithm.h"
#include "lockstep/optim/dense_parameter.h"
#include "lockstep/optim/flat_parameters.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/optim/parameter_groups.h"
#include "lockstep/parallel/model_agreement.h"
#include "lockstep/parallel/reduction_access.h"

namespace lockstep::optim {
namespace detail {

inline std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const auto& group : optimizer.param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

// The index of the group that has the parameter of this number.
inline std::size_t group_of(torch::optim::Optimizer& optimizer, std::size_t number) {
  std::size_t group = 0;
  while (number >= optimizer.param_groups()[group].params().size()) {
    number -= optimizer.param_groups()[group++].params().size();
  }
  return group;
}

// Updates parameters of one group: in host memory one by one, on other devices as lists of one
// type.
template <class Options, class State>
class Updates {
 public:
  // Options are read when parameters are updated.
  Updates(torch::optim::Optimizer& optimizer, const torch::optim::OptimizerOptions& options)
      : optimizer_(optimizer), options_(static_cast<const Options&>(options)) {}

  void add(const DenseParameter& parameter) {
    const at::Tensor& values = parameter.values();
    if (values.is_cpu()) {
      Algorithm<State>::update(optimizer_, parameter, options_);
      return parameter.commit();
    }
    for (std::vector<DenseParameter>& list : lists_) {
      const at::Tensor& other = list.front().values();
      if (other.device() == values.device() && other.scalar_type() == values.scalar_type()) {
        return list.push_back(parameter);
      }
    }
    lists_.push_back({parameter});
  }

  void finish() {
    for (const std::vector<DenseParameter>& list : lists_) {
      Algorithm<State>::update_on_device(optimizer_, list, options_);
      for (const DenseParameter& parameter : list) parameter.commit();
    }
    lists_.clear();
  }

 private:
  torch::optim::Optimizer& optimizer_;
  const Options& options_;
  std::vector<std::vector<DenseParameter>> lists_;
};

inline bool have_gradients(const torch::optim::Optimizer& optimizer) {
  const auto all = parameters_of(optimizer);
  return std::any_of(all.begin(), all.end(),
                     [](const at::Tensor& parameter) { return parameter.grad().defined(); });
}

template <class State>
void copy_state(torch::optim::Optimizer& from, torch::optim::Optimizer& to) {
  for (const at::Tensor& parameter : parameters_of(from)) {
    const State* const state = find_state<State>(from, parameter);
    if (state != nullptr) state_of<State>(to, parameter) = *state;
  }
}

// All ranks throw the same UsageError if options or parameters differ.
template <class Options, class State>
void check_same_options(const torch::optim::Optimizer& optimizer, ProcessGroup& group) {
  std::vector<std::string> lines;
  const auto& groups = optimizer.param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto& options = static_cast<const Options&>(groups[i].options());
    for (const std::string& option : Algorithm<State>::describe(options)) {
      lines.push_back(fmt::format("{} for group {}", option, i));
    }
    for (std::size_t k = 0; k < groups[i].params().size(); ++k) {
      lines.push_back(
          fmt::format("{} as parameter {} of group {}", description(groups[i].params()[k]), k, i));
    }
  }
  check_agreement(group, Algorithm<State>::name(), lines, "optimizer");
}

}  // namespace detail

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
  reduction_ = ReductionAccess::of(model);
  shard(model.group());
}

template <class Base, class Options, class State>
FusedOptimizer<Base, Options, State>::FusedOptimizer(DistributedDataParallelBase& model,
                                                     Options defaults)
    : FusedOptimizer({torch::optim::OptimizerParamGroup(model.parameters())}, std::move(defaults),
                     model) {}

template <class Base, class Options, class State>
FusedOptimizer<Base, Options, State>::FusedOptimizer(FusedOptimizer&&) noexcept = default;

template <class Base, class Options, class State>
FusedOptimizer<Base, Options, State>::~FusedOptimizer() = default;

template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::shard(GroupArgument group) {
  ProcessGroup& ranks = group.get();
  if (ranks.size() == 1) return;
  detail::check_same_options<Options, State>(*this, ranks);
  group_ = group.shared();
  lay_out();
}

// Moves the parameters, unless that has been done. A model knows their places after a backward;
// false before.
template <class Base, class Options, class State>
bool FusedOptimizer<Base, Options, State>::lay_out() {
  if (flat_) return true;
  if (reduction_ && reduction_->plan().empty()) return false;
  flat_ = std::make_unique<FlatParameters>(Algorithm<State>::name(), detail::parameters_of(*this),
                                           *group_, reduction_.get());
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
  update();
  return loss;
}

template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::update() {
  require_updatable(Algorithm<State>::name(), *this);
  const at::NoGradGuard no_grad;
  if (group_) return update_own_parts();
  for (auto& group : this->param_groups()) {
    detail::Updates<Options, State> updates(*this, group.options());
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) updates.add(DenseParameter(parameter));
    }
    updates.finish();
  }
}

template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::update_own_parts() {
  if (!lay_out()) {
    if (!detail::have_gradients(*this)) return;
    throw UsageError(
        fmt::format("{}, rank {} of {}: parameters have gradients, but no backward of "
                    "the wrapped model has reduced them. Call the wrapper, and "
                    "backward() of its result, before step()",
                    Algorithm<State>::name(), group_->rank(), group_->size()));
  }
  if (detail::parameters_of(*this).size() != flat_->parameters()) {
    throw UsageError(
        fmt::format("{}, rank {} of {}: a parameter group was added after the "
                    "parameters had been divided among the ranks. Give all groups to "
                    "the constructor",
                    Algorithm<State>::name(), group_->rank(), group_->size()));
  }
  flat_->check();
  consolidated_.reset();
  std::vector<detail::Updates<Options, State>> updates;
  for (auto& group : this->param_groups()) updates.emplace_back(*this, group.options());
  std::vector<Work> exchanges;
  for (std::size_t bucket = 0; bucket < flat_->buckets(); ++bucket) {
    for (const ParameterPart& part : flat_->own_parts(bucket)) {
      if (!part.parameter.grad().defined()) continue;
      updates[detail::group_of(*this, part.number)].add(DenseParameter(part.parameter, part.range));
    }
    for (auto& of_group : updates) of_group.finish();
    exchanges.push_back(flat_->exchange(bucket));
  }
  for (Work& exchange : exchanges) exchange.wait();
  flat_->commit();
}

template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::consolidate_state(int to) {
  if (!group_) return;
  const at::NoGradGuard no_grad;
  consolidated_.reset();
  if (!lay_out()) {
    if (group_->rank() != to) return;
    consolidated_ = plain_copy();
    if (loaded_) detail::copy_state<State>(*loaded_, *consolidated_);
    return;
  }
  const std::vector<at::Tensor> parameters = detail::parameters_of(*this);
  State empty;
  const std::size_t kinds = Algorithm<State>::tensors(empty).size();
  // Of each parameter: which tensors its state has on the ranks that own it, and its steps.
  const at::Tensor found = at::zeros(
      {static_cast<std::int64_t>(parameters.size()), static_cast<std::int64_t>(kinds) + 1},
      at::kLong);
  auto rows = found.accessor<std::int64_t, 2>();
  using Parts = std::vector<std::vector<at::Tensor>>;  // of each bucket
  std::vector<Parts> parts(kinds, Parts(flat_->buckets()));
  for (std::size_t bucket = 0; bucket < flat_->buckets(); ++bucket) {
    for (const ParameterPart& part : flat_->own_parts(bucket)) {
      State* const state = find_state<State>(*this, part.parameter);
      auto row = rows[static_cast<std::int64_t>(part.number)];
      for (std::size_t kind = 0; kind < kinds; ++kind) {
        at::Tensor tensor =
            state == nullptr ? at::Tensor() : *Algorithm<State>::tensors(*state)[kind];
        row[static_cast<std::int64_t>(kind)] = tensor.defined() ? 1 : 0;
        parts[kind][bucket].push_back(std::move(tensor));
      }
      if (state != nullptr) row[static_cast<std::int64_t>(kinds)] = Algorithm<State>::steps(*state);
    }
  }
  group_->all_reduce(found, ReduceOp::max).wait();
  std::vector<std::vector<at::Tensor>> whole;
  for (std::size_t kind = 0; kind < kinds; ++kind) whole.push_back(flat_->whole(parts[kind]));
  if (group_->rank() != to) return;
  consolidated_ = plain_copy();
  for (std::size_t number = 0; number < parameters.size(); ++number) {
    const auto row = rows[static_cast<std::int64_t>(number)];
    for (std::size_t kind = 0; kind < kinds; ++kind) {
      if (row[static_cast<std::int64_t>(kind)] == 0) continue;
      State& state = state_of<State>(*consolidated_, parameters[number]);
      *Algorithm<State>::tensors(state)[kind] = whole[kind][number];
      Algorithm<State>::set_steps(state, row[static_cast<std::int64_t>(kinds)]);
    }
  }
}

// One of libtorch's, with the same parameters and options, and without state.
template <class Base, class Options, class State>
std::unique_ptr<Base> FusedOptimizer<Base, Options, State>::plain_copy() {
  auto copy =
      std::make_unique<Base>(this->param_groups(), static_cast<const Options&>(this->defaults()));
  // Later versions let options of groups inherit from the defaults.
  for (std::size_t i = 0; i < this->param_groups().size(); ++i) {
    static_cast<Options&>(copy->param_groups()[i].options()) =
        static_cast<const Options&>(this->param_groups()[i].options());
  }
  return copy;
}

template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::save(torch::serialize::OutputArchive& archive) const {
  if (!group_) return Base::save(archive);
  if (!consolidated_) {
    throw UsageError(
        fmt::format("{}, rank {} of {}: this rank has only its part of the state. Call "
                    "consolidate_state(to) on "
                    "every rank after the last step, and then save on rank `to` (0 by default)",
                    Algorithm<State>::name(), group_->rank(), group_->size()));
  }
  consolidated_->save(archive);
}

template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::load(torch::serialize::InputArchive& archive) {
  if (!group_) return Base::load(archive);
  std::unique_ptr<Base> whole = plain_copy();
  whole->load(archive);
  loaded_ = std::move(whole);
  consolidated_.reset();
  this->state().clear();
  for (std::size_t i = 0; i < this->param_groups().size(); ++i) {
    static_cast<Options&>(this->param_groups()[i].options()) =
        static_cast<const Options&>(loaded_->param_groups()[i].options());
  }
  if (flat_) take_own_parts();
}

template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::take_own_parts() {
  const at::NoGradGuard no_grad;
  const std::unique_ptr<Base> whole = std::move(loaded_);
  for (std::size_t bucket = 0; bucket < flat_->buckets(); ++bucket) {
    for (const ParameterPart& part : flat_->own_parts(bucket)) {
      const State* const loaded = find_state<State>(*whole, part.parameter);
      if (loaded == nullptr) continue;
      State& state = state_of<State>(*this, part.parameter);
      state = *loaded;
      for (at::Tensor* tensor : Algorithm<State>::tensors(state)) {
        if (tensor->defined()) *tensor = part_of(*tensor, part.parameter, part.range);
      }
    }
  }
}

}  // namespace lockstep::optim
