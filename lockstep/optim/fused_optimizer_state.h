// SPDX-License-Identifier: BSD-3-Clause
// The members of FusedOptimizer that save, load and gather its state.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/algorithm.h"
#include "lockstep/optim/dense_parameter.h"
#include "lockstep/optim/flat_parameters.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/optim/parameter_groups.h"
#include "lockstep/optim/update_log.h"
#include "lockstep/parallel/one_copy.h"

namespace lockstep::optim {
namespace detail {

template <class State>
void copy_state(torch::optim::Optimizer& from, torch::optim::Optimizer& to) {
  for (const at::Tensor& parameter : parameters_of(from)) {
    const State* const state = find_state<State>(from, parameter);
    if (state != nullptr) state_of<State>(to, parameter) = *state;
  }
}

// One line per option.
template <class Options, class State>
std::vector<std::string> describe_options(const std::vector<Options>& of_groups) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < of_groups.size(); ++i) {
    for (const std::string& option : Algorithm<State>::describe(of_groups[i])) {
      lines.push_back(fmt::format("{} for group {}", option, i));
    }
  }
  return lines;
}

template <class Options>
std::vector<Options> options_of_groups(const torch::optim::Optimizer& optimizer) {
  std::vector<Options> options;
  for (const auto& group : optimizer.param_groups()) {
    options.push_back(static_cast<const Options&>(group.options()));
  }
  return options;
}

// The options, a line per parameter, and for each parameter that has a state its number of steps.
template <class Options, class State>
std::vector<std::string> describe(torch::optim::Optimizer& optimizer) {
  auto lines = describe_options<Options, State>(options_of_groups<Options>(optimizer));
  auto& groups = optimizer.param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    for (std::size_t k = 0; k < groups[i].params().size(); ++k) {
      const at::Tensor& parameter = groups[i].params()[k];
      lines.push_back(fmt::format("{} as parameter {} of group {}", description(parameter), k, i));
      const State* const state = find_state<State>(optimizer, parameter);
      if (state != nullptr) {
        lines.back() += fmt::format(", updated {} times", Algorithm<State>::steps(*state));
      }
    }
  }
  return lines;
}

// UsageError if the state of a parameter has another shape than the parameter.
template <class State>
void check_shapes(torch::optim::Optimizer& loaded) {
  const std::vector<at::Tensor> parameters = parameters_of(loaded);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    State* const state = find_state<State>(loaded, parameters[i]);
    if (state == nullptr) continue;
    for (const at::Tensor* tensor : Algorithm<State>::tensors(*state)) {
      if (!tensor->defined() || tensor->sizes() == parameters[i].sizes()) continue;
      throw UsageError({.component = std::string(Algorithm<State>::name())},
                       fmt::format("the file has {} as the state of parameter {}, which is {}",
                                   description(*tensor), i, description(parameters[i])),
                       "load the file of an optimizer of the same model");
    }
  }
}

// The elements in this range of a parameter, and the state that is given for them. Tensors of state
// have the shape of the parameter, unless they are of this range already.
template <class State>
StatePart state_part(const ParameterPart& part, State& state, bool is_divided) {
  const at::Tensor& parameter = part.parameter;
  // A parameter with gaps is not updated in its own order, but in the order of a copy.
  const at::Tensor dense =
      parameter.is_non_overlapping_and_dense() ? parameter : at::empty_like(parameter);
  StatePart result{.parameter = part.number,
                   .begin = part.range.begin,
                   .end = part.range.begin + part.range.count,
                   .sizes = dense.sizes().vec(),
                   .strides = dense.strides().vec(),
                   .tensors = {},
                   .steps = Algorithm<State>::steps(state)};
  const auto names = Algorithm<State>::tensor_names();
  const auto tensors = Algorithm<State>::tensors(state);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!tensors[i]->defined()) continue;
    result.tensors.push_back(
        {names[i], is_divided ? *tensors[i] : part_of(*tensors[i], parameter, part.range)});
  }
  return result;
}

// How many kinds of tensors the state of a parameter has, up to the last that is defined.
template <class State>
int kinds_of(State& state) {
  const auto tensors = Algorithm<State>::tensors(state);
  auto kinds = static_cast<int>(tensors.size());
  while (kinds > 0 && !tensors[static_cast<std::size_t>(kinds - 1)]->defined()) --kinds;
  return kinds;
}

// The state of every parameter of an optimizer that is not sharded.
template <class State>
std::vector<StatePart> whole_parts(torch::optim::Optimizer& optimizer) {
  std::vector<StatePart> parts;
  const std::vector<at::Tensor> parameters = parameters_of(optimizer);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    State* const state = find_state<State>(optimizer, parameters[i]);
    if (state == nullptr) continue;
    const ParameterPart whole{i, parameters[i], {0, parameters[i].numel()}};
    parts.push_back(state_part(whole, *state, /*is_divided=*/false));
  }
  return parts;
}

// The options of each group.
template <class Options>
void copy_options(const torch::optim::Optimizer& from, torch::optim::Optimizer& to) {
  for (std::size_t i = 0; i < from.param_groups().size(); ++i) {
    static_cast<Options&>(to.param_groups()[i].options()) =
        static_cast<const Options&>(from.param_groups()[i].options());
  }
}

}  // namespace detail

template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::consolidate_state(int to) {
  if (!group_) return;
  if (to < 0 || to >= group_->size()) {
    throw UsageError(context(), fmt::format("consolidate_state({}) names no rank", to),
                     fmt::format("give a rank from 0 to {}", group_->size() - 1));
  }
  consolidated_.reset();
  consolidated_ = state_gathered_on(to);
}

template <class Base, class Options, class State>
std::unique_ptr<torch::optim::Optimizer> FusedOptimizer<Base, Options, State>::whole_state() {
  if (!group_) {
    auto whole = plain_copy();
    detail::copy_state<State>(*this, *whole);
    return whole;
  }
  std::unique_ptr<Base> whole;
  for (int rank = 0; rank < group_->size(); ++rank) {
    auto gathered = state_gathered_on(rank);
    if (gathered) whole = std::move(gathered);
  }
  return whole;
}

// Null on the other ranks.
template <class Base, class Options, class State>
std::unique_ptr<Base> FusedOptimizer<Base, Options, State>::state_gathered_on(int to) {
  const at::NoGradGuard no_grad;
  auto gathered = group_->rank() == to ? plain_copy() : nullptr;
  if (lay_out()) {
    gather_state(gathered.get(), to);
  } else if (loaded_ && gathered) {
    detail::copy_state<State>(*loaded_, *gathered);
  }
  return gathered;
}

template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::gather_state(Base* consolidated, int to) {
  const CallScope scope(CallOrigin::optimizer_state);
  const auto parameters = static_cast<std::int64_t>(flat_->parameters());
  State empty;
  const auto kinds = static_cast<std::int64_t>(Algorithm<State>::tensors(empty).size());
  // For each parameter: which tensors its state has on any rank, and its number of steps.
  const at::Tensor found = at::zeros({parameters, kinds + 1}, at::kLong);
  auto rows = found.accessor<std::int64_t, 2>();
  // For each kind of tensor, the parts of each bucket.
  using Parts = std::vector<std::vector<at::Tensor>>;
  std::vector<Parts> parts(static_cast<std::size_t>(kinds), Parts(flat_->buckets()));
  for (std::size_t bucket = 0; bucket < flat_->buckets(); ++bucket) {
    for (const ParameterPart& part : flat_->own_parts(bucket)) {
      State* const state = find_state<State>(*this, part.parameter);
      const auto number = static_cast<std::int64_t>(part.number);
      for (std::int64_t kind = 0; kind < kinds; ++kind) {
        const auto k = static_cast<std::size_t>(kind);
        at::Tensor tensor = state ? *Algorithm<State>::tensors(*state)[k] : at::Tensor();
        if (tensor.defined()) rows[number][kind] = 1;
        parts[k][bucket].push_back(std::move(tensor));
      }
      if (state) rows[number][kinds] = Algorithm<State>::steps(*state);
    }
  }
  group_->all_reduce(found, ReduceOp::max).wait();
  const std::vector<at::Tensor> all = parameters_of(*this);
  for (std::int64_t kind = 0; kind < kinds; ++kind) {
    if (found.select(1, kind).max().item<std::int64_t>() == 0) continue;
    const auto k = static_cast<std::size_t>(kind);
    const std::vector<at::Tensor> whole = flat_->gather(parts[k], to);
    for (std::int64_t number = 0; consolidated && number < parameters; ++number) {
      if (rows[number][kind] == 0) continue;
      const auto n = static_cast<std::size_t>(number);
      State& state = state_of<State>(*consolidated, all[n]);
      *Algorithm<State>::tensors(state)[k] = whole[n];
      Algorithm<State>::set_steps(state, rows[number][kinds]);
    }
  }
}

// Returns an optimizer of libtorch with the same parameters and options, without state.
template <class Base, class Options, class State>
std::unique_ptr<Base> FusedOptimizer<Base, Options, State>::plain_copy() const {
  auto copy =
      std::make_unique<Base>(this->param_groups(), static_cast<const Options&>(*this->defaults_));
  // Later versions let options of groups inherit from the defaults.
  detail::copy_options<Options>(*this, *copy);
  return copy;
}

template <class Base, class Options, class State>
std::unique_ptr<torch::optim::Optimizer> FusedOptimizer<Base, Options, State>::without_state()
    const {
  return plain_copy();
}

template <class Base, class Options, class State>
const torch::optim::Optimizer& FusedOptimizer<Base, Options, State>::with_whole_state() const {
  if (!group_) return *this;
  // A group may have been added since.
  if (!consolidated_ || consolidated_->param_groups().size() != this->param_groups().size()) {
    throw UsageError(context(), "this rank has only its part of the state",
                     "call consolidate_state(to) on every rank after the last step, and then save "
                     "on rank `to` (0 by default)");
  }
  detail::copy_options<Options>(*this, *consolidated_);
  return *consolidated_;
}

template <class Base, class Options, class State>
std::vector<StatePart> FusedOptimizer<Base, Options, State>::own_state() {
  const at::NoGradGuard no_grad;
  if (!group_) return detail::whole_parts<State>(*this);
  std::vector<StatePart> parts;
  if (!flat_) {
    if (loaded_ && group_->rank() == 0) parts = detail::whole_parts<State>(*loaded_);
    return parts;
  }
  for (std::size_t bucket = 0; bucket < flat_->buckets(); ++bucket) {
    for (const ParameterPart& part : flat_->own_parts(bucket)) {
      State* const state = find_state<State>(*this, part.parameter);
      if (state != nullptr) parts.push_back(detail::state_part(part, *state, /*is_divided=*/true));
    }
  }
  return parts;
}

template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::save(torch::serialize::OutputArchive& archive) const {
  if (!group_) return Base::save(archive);
  with_whole_state().save(archive);
}

template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::load(torch::serialize::InputArchive& archive) {
  if (!group_) return Base::load(archive);
  std::unique_ptr<Base> whole = plain_copy();
  whole->load(archive);
  load_whole(std::move(whole));
}

template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::load_whole(
    std::unique_ptr<torch::optim::Optimizer> whole) {
  const std::string_view name = Algorithm<State>::name();
  auto* const same = dynamic_cast<Base*>(whole.get());
  if (same == nullptr || dynamic_cast<FusedOptimizer*>(same) != nullptr) {
    throw UsageError({.component = std::string(name)},
                     "load_whole takes an optimizer as without_state() makes it");
  }
  require_same_parameters(name, *same, *this);
  detail::check_shapes<State>(*same);
  consolidated_.reset();
  this->state().clear();
  detail::copy_options<Options>(*same, *this);
  unbegun_.reset();
  if (!group_) {
    for (const at::Tensor& parameter : parameters_of(*same)) {
      State* const state = find_state<State>(*same, parameter);
      if (state == nullptr) continue;
      // As recover() gives it, other ranks have this memory too.
      for (at::Tensor* tensor : Algorithm<State>::tensors(*state)) leave_one_copy(*tensor);
    }
    return detail::copy_state<State>(*same, *this);
  }
  loaded_.reset(static_cast<Base*>(whole.release()));
  loaded_lines_ = detail::describe<Options, State>(*loaded_);
  if (flat_) take_own_parts();
}

template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::take_own_parts() {
  const at::NoGradGuard no_grad;
  for (std::size_t bucket = 0; bucket < flat_->buckets(); ++bucket) {
    for (const ParameterPart& part : flat_->own_parts(bucket)) {
      const State* const loaded = find_state<State>(*loaded_, part.parameter);
      if (loaded == nullptr) continue;
      State& state = state_of<State>(*this, part.parameter);
      state = *loaded;
      for (at::Tensor* tensor : Algorithm<State>::tensors(state)) {
        if (tensor->defined()) *tensor = part_of(*tensor, part.parameter, part.range);
      }
    }
  }
  if (log_) {
    loaded_kinds_ = 0;
    for (const at::Tensor& parameter : parameters_of(*loaded_)) {
      State* const state = find_state<State>(*loaded_, parameter);
      if (state != nullptr) loaded_kinds_ = std::max(loaded_kinds_, detail::kinds_of(*state));
    }
    loaded_for_ = flat_->updates() + 1;
    unbegun_ = std::move(loaded_);
  }
  loaded_.reset();
}

}  // namespace lockstep::optim
