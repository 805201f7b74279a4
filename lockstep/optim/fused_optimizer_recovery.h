// SPDX-License-Identifier: BSD-3-Clause
// The members of FusedOptimizer that update parameters of which the ranks of a host have one copy,
// and complete the update in which a rank was killed.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <unistd.h>

#include "lockstep/comm/objects.h"
#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/algorithm.h"
#include "lockstep/optim/dense_parameter.h"
#include "lockstep/optim/flat_parameters.h"
#include "lockstep/optim/fused_optimizer_state.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/optim/parameter_groups.h"
#include "lockstep/optim/update_log.h"
#include "lockstep/parallel/divided_reduction.h"
#include "lockstep/parallel/one_copy.h"

namespace lockstep::optim {
namespace detail {

// What survivors tell each other before they complete an update.
struct Survivor {
  int rank = 0;
  std::int64_t loaded_for = 0;  // the update that begins with a state that was loaded; 0 for none
};

// PeerLost, to a survivor, is sometimes the word of another that has seen the death; the system may
// need a moment to end a process.
constexpr std::chrono::milliseconds kEndTimeout = std::chrono::seconds(10);

inline void require_end(const ProcessGroup& group, int rank, std::chrono::milliseconds timeout,
                        const ErrorContext& context) {
  const Deadline soon = Deadline::after(std::min(timeout, kEndTimeout));
  while (!group.has_ended(rank)) {
    if (soon.passed()) {
      throw UsageError(context,
                       fmt::format("rank {} is not among the survivors, but has not ended, and "
                                   "could still change parameters",
                                   rank),
                       "end its process before recover(), or let it take part");
    }
    ::usleep(1000);
  }
}

// Gradients that no model has reduced into buckets are whole on each rank, which reads its own.
inline void use_own_gradient(UpdateLog::Part& part, int ranks) {
  at::Tensor& gradient = part.parameter.mutable_grad();
  if (!gradient.defined()) return;
  gradient = DenseParameter(part.parameter).gradient();  // a copy if its order was another one
  const std::int64_t begin = part.range.begin * gradient.element_size();
  part.gradients.assign(static_cast<std::size_t>(ranks),
                        static_cast<std::byte*>(gradient.data_ptr()) + begin);
}

}  // namespace detail

// Everything that survivors must know of the update that begins next.
template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::prepare_logged_update(double gradient_factor,
                                                                 bool averages) {
  gradient_factor_ = gradient_factor;
  averages_ = averages;
  if (reduction_ && !averages) reduction_->return_to_buckets();
  int kinds = loaded_kinds_;
  for (const Options& options : compared_options_) {
    kinds = std::max(kinds, Algorithm<State>::kinds(options));
  }
  log_->reserve_state(kinds);
  for (UpdateLog::Part& part : log_->parts(group_->rank())) {
    if (!reduction_) detail::use_own_gradient(part, group_->size());
    const bool is_updated = part.parameter.grad().defined();
    const int made = Algorithm<State>::kinds(compared_options_[group_of(*this, part.number)]);
    State* const state = find_state<State>(*this, part.parameter);
    UpdateLog::Note note{.steps_before = state ? Algorithm<State>::steps(*state) : 0,
                         .kinds_after = is_updated ? (1U << made) - 1 : 0,
                         .is_updated = is_updated ? 1U : 0U};
    for (std::size_t kind = 0; kind < part.state.size(); ++kind) {
      at::Tensor* const tensor = state ? Algorithm<State>::tensors(*state)[kind] : nullptr;
      if (tensor == nullptr || !tensor->defined()) {
        if (is_updated && static_cast<int>(kind) < made) part.state[kind].zero_();
        continue;
      }
      note.kinds_before |= 1U << kind;
      if (tensor->data_ptr() == part.state[kind].data_ptr()) continue;
      part.state[kind].copy_(*tensor);
      *tensor = part.state[kind];
    }
    note.kinds_after |= note.kinds_before;
    if (part.range.begin == 0) log_->set_note(flat_->updates() + 1, part.number, note);
  }
}

// The updates of parts in the log, by an optimizer that has their state.
template <class Base, class Options, class State>
template <class Part>
void FusedOptimizer<Base, Options, State>::update_logged_part(torch::optim::Optimizer& optimizer,
                                                              const Part& part) {
  const Options& options = compared_options_[group_of(*this, part.number)];
  Updates<Options, State> updates(optimizer, options, gradient_factor_);
  updates.add(
      DenseParameter(LoggedPart{log_.get(), &part, averages_, Algorithm<State>::kinds(options)}));
}

template <class Base, class Options, class State>
RecoveredOptimizer FusedOptimizer<Base, Options, State>::recover(GroupArgument survivors) {
  const CallScope scope(CallOrigin::optimizer_state);
  const at::NoGradGuard no_grad;
  if (host_ && host_ != group_) {
    throw UsageError(context(),
                     "recover() is for the ranks of one host. These are on several, of which one "
                     "may have taken the last step, and another not",
                     "continue from a checkpoint");
  }
  const std::vector<at::Tensor> parameters = parameters_of(*this);
  if (!can_recover()) {
    throw UsageError({.component = std::string(Algorithm<State>::name())},
                     "recover() is for an optimizer of a model with one_copy_per_host",
                     "continue from a checkpoint");
  }
  require_groups_as_divided();
  const Base* const loaded = loaded_ ? loaded_.get() : unbegun_.get();
  const detail::Survivor self{.rank = group_->rank(), .loaded_for = loaded ? loaded_for_ : 0};
  // The exchange is also a meeting: none of the survivors is in step() any more.
  const std::vector<detail::Survivor> all = all_gather_object(self, survivors);
  const std::vector<int> lost = lost_ranks(all, survivors.get().timeout());
  const std::int64_t update = log_ ? log_->last_begun() : 0;
  const bool has_loaded = self.loaded_for > update;
  for (const detail::Survivor& other : all) {
    if ((other.loaded_for > update) == has_loaded) continue;
    throw UsageError(
        context(),
        fmt::format("rank {} has loaded a state since the last step, and rank {} has not",
                    has_loaded ? self.rank : other.rank, has_loaded ? other.rank : self.rank),
        "load the checkpoint on all survivors instead");
  }
  if (update > 0) complete_update(update, survivors.get(), lost);
  for (std::size_t number = 0; number < parameters.size(); ++number) {
    leave_one_copy(parameters[number]);
    if (log_) parameters[number].copy_(log_->values(number));
  }
  is_recovered_ = true;
  return {.steps = update, .state = has_loaded ? loaded_copy() : logged_state(update)};
}

template <class Base, class Options, class State>
bool FusedOptimizer<Base, Options, State>::can_recover() const {
  if (log_ || is_recovered_) return true;
  const std::vector<at::Tensor> parameters = parameters_of(*this);
  return group_ && !parameters.empty() && has_one_copy(parameters.front());
}

// Returns the ranks that are not among the survivors, once they have ended.
template <class Base, class Options, class State>
std::vector<int> FusedOptimizer<Base, Options, State>::lost_ranks(
    const std::vector<detail::Survivor>& survivors, std::chrono::milliseconds timeout) const {
  std::vector<int> lost;
  for (int rank = 0; rank < group_->size(); ++rank) {
    const auto is_it = [&](const detail::Survivor& survivor) { return survivor.rank == rank; };
    if (std::ranges::none_of(survivors, is_it)) lost.push_back(rank);
  }
  for (const int rank : lost) detail::require_end(*group_, rank, timeout, context());
  return lost;
}

// Each survivor completes its own parts, and the parts of the lost ranks are divided.
template <class Base, class Options, class State>
void FusedOptimizer<Base, Options, State>::complete_update(std::int64_t update, ProcessGroup& group,
                                                           const std::vector<int>& lost) {
  log_->resume(update);
  if (group.rank() == 0) log_->restore_blocks();
  group.barrier().wait();
  const std::unique_ptr<Base> before = plain_copy();
  const auto complete = [&](int rank) {
    for (UpdateLog::Part& part : log_->parts(rank)) {
      const UpdateLog::Note note = log_->note(update, part.number);
      // Options may be those of the next update already, but then this one is complete.
      if (note.is_updated == 0 || log_->is_complete(part)) continue;
      // The own gradient may be undefined only where the update is complete.
      if (!reduction_) detail::use_own_gradient(part, group_->size());
      State& state = state_of<State>(*before, part.parameter);
      Algorithm<State>::set_steps(state, note.steps_before);
      const auto tensors = Algorithm<State>::tensors(state);
      for (std::size_t kind = 0; kind < tensors.size(); ++kind) {
        const bool is_defined = (note.kinds_before >> kind & 1U) != 0;
        *tensors[kind] = is_defined ? part.state[kind] : at::Tensor();
      }
      update_logged_part(*before, part);
    }
  };
  complete(group_->rank());
  for (std::size_t i = 0; i < lost.size(); ++i) {
    if (static_cast<int>(i) % group.size() == group.rank()) complete(lost[i]);
  }
  group.barrier().wait();
}

// Returns an optimizer with the state after the update.
template <class Base, class Options, class State>
std::unique_ptr<torch::optim::Optimizer> FusedOptimizer<Base, Options, State>::logged_state(
    std::int64_t update) const {
  auto whole = plain_copy();
  const std::vector<at::Tensor> parameters = parameters_of(*this);
  for (std::size_t number = 0; update > 0 && number < parameters.size(); ++number) {
    const UpdateLog::Note note = log_->note(update, number);
    if (note.kinds_after == 0) continue;
    State& state = state_of<State>(*whole, parameters[number]);
    const auto tensors = Algorithm<State>::tensors(state);
    for (std::size_t kind = 0; kind < tensors.size(); ++kind) {
      if ((note.kinds_after >> kind & 1U) != 0) {
        *tensors[kind] = log_->state(number, static_cast<int>(kind));
      }
    }
    Algorithm<State>::set_steps(state, note.steps_before + note.is_updated);
  }
  return whole;
}

// Returns an optimizer with the state that was loaded and that no update has changed yet, if any.
template <class Base, class Options, class State>
std::unique_ptr<torch::optim::Optimizer> FusedOptimizer<Base, Options, State>::loaded_copy() const {
  auto whole = plain_copy();
  Base* const loaded = unbegun_ ? unbegun_.get() : loaded_.get();
  if (loaded != nullptr) detail::copy_state<State>(*loaded, *whole);
  return whole;
}

}  // namespace lockstep::optim
