// SPDX-License-Identifier: BSD-3-Clause
// Counts gradients, launches buckets in order, and finishes at the end of backward.
#include "lockstep/parallel/backward_reduction.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "lockstep/comm/core/calls_differ.h"
#include "lockstep/comm/group_access.h"
#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/core/process/freed_memory.h"
#include "lockstep/core/rethrow.h"
#include "lockstep/core/trace_span.h"
#include "lockstep/parallel/model_checks.h"
#include "lockstep/parallel/uneven_batches.h"

namespace lockstep {

// Held by autograd's list of final callbacks of this backward. If it is destroyed without being
// called, backward has ended with an exception.
class BackwardReduction::EndOfBackward {
 public:
  EndOfBackward(std::shared_ptr<BackwardReduction> reduction, void (BackwardReduction::*ended)(),
                void (BackwardReduction::*failed)() noexcept)
      : reduction_(std::move(reduction)), ended_(ended), failed_(failed) {}
  EndOfBackward(const EndOfBackward&) = delete;
  EndOfBackward& operator=(const EndOfBackward&) = delete;
  ~EndOfBackward() {
    if (!called_) ((*reduction_).*failed_)();
  }

  void call() {
    called_ = true;
    ((*reduction_).*ended_)();
  }

 private:
  std::shared_ptr<BackwardReduction> reduction_;
  void (BackwardReduction::*ended_)();
  void (BackwardReduction::*failed_)() noexcept;
  bool called_ = false;
};

void BackwardReduction::at_end_of_backward(void (BackwardReduction::*ended)(),
                                           void (BackwardReduction::*failed)() noexcept) {
  auto end = std::make_shared<EndOfBackward>(shared_from_this(), ended, failed);
  torch::autograd::Engine::get_default_engine().queue_callback([end] { end->call(); });
}

// Runs a function that uses the group. Any error ends the group, and is rethrown with a hint at its
// most frequent cause.
template <class Function>
void BackwardReduction::reducing(Function&& function) {
  const CallScope scope(CallOrigin::backward);
  try {
    function();
  } catch (const std::exception& error) {
    const bool refused_here = !failure_.empty();
    give_up(error.what());
    if (refused_here) throw;
    const std::string before = where() + "reducing gradients: ";
    if (announces_) rethrow_with(before);
    rethrow_with_hint_at_batches(before);
  }
}

BackwardReduction::BackwardReduction(const std::vector<NamedTensor>& parameters,
                                     std::shared_ptr<ProcessGroup> group, BucketLimits limits,
                                     const ReducerOptions& options,
                                     std::shared_ptr<const int> no_sync_depth)
    : group_(std::move(group)),
      limits_(limits),
      options_(options),
      no_sync_depth_(std::move(no_sync_depth)) {
  parameters_.reserve(parameters.size());
  for (const NamedTensor& parameter : parameters) {
    if (!parameter.tensor.requires_grad()) continue;
    parameters_.emplace_back(parameter, static_cast<int>(parameters_.size()), *this);
  }
  if (!options_.check_finite) return;
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters_) names.push_back(parameter.name);
  finite_gradients_.emplace(std::move(names));
}

std::string BackwardReduction::where() const {
  return fmt::format("[reducer] rank {} of {}: ", group_->rank(), group_->size());
}

void BackwardReduction::check() {
  if (!failure_.empty()) {
    throw Error(where() + "an earlier backward failed and ended the group: " + failure_ +
                ". Form a new group and wrap the model again, or start the job anew");
  }
  refuse_updates_without_reduction();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    if (parameter.hooks.on(parameter.tensor)) continue;
    // A graph of an earlier forward may still lead to the accumulator that it had.
    std::erase_if(parameter.earlier_hooks,
                  [](const GradientHooks& hooks) { return hooks.alone(); });
    parameter.earlier_hooks.push_back(std::move(parameter.hooks));
    parameter.hooks = GradientHooks(parameter.tensor, static_cast<int>(i), *this);
  }
}

std::vector<std::string> BackwardReduction::unused_parameters() const {
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters_) {
    if (parameter.unused_everywhere) names.push_back(parameter.name);
  }
  return names;
}

void BackwardReduction::begin() {
  active_ = true;
  shares_are_due_ = defers_shares_ && !hook_ && !finite_gradients_;
}

// torch::autograd::grad() for tensors other than our parameters also enters through the outputs,
// and leaves nothing to reduce.
bool BackwardReduction::accumulates_nothing() const {
  const auto* needed = torch::autograd::get_current_graph_task_exec_info();
  if (!needed || needed->empty()) return false;
  const auto accumulates = [&](const GradientHooks& hooks) {
    const auto info = needed->find(const_cast<torch::autograd::Node*>(hooks.accumulator()));
    return info != needed->end() && info->second.needed_;
  };
  return std::none_of(parameters_.begin(), parameters_.end(), [&](const Parameter& parameter) {
    return accumulates(parameter.hooks) ||
           std::any_of(parameter.earlier_hooks.begin(), parameter.earlier_hooks.end(), accumulates);
  });
}

void BackwardReduction::backward_entered() {
  if (accumulates_nothing()) return;
  refuse_create_graph();
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) check();
  if (active_) return;  // another output, or a nested backward
  require_owner_of_shares();
  reducing([&] { announce(JoinStep::reduce_gradients); });
  if (plan_.empty()) {
    for (Parameter& parameter : parameters_) parameter.last_tick = 0;  // of earlier backwards
  }
  begin();
  at_end_of_backward(&BackwardReduction::finish, &BackwardReduction::backward_failed);
}

void BackwardReduction::refuse_create_graph() const {
  if (!at::GradMode::is_enabled()) return;
  throw UsageError(where() +
                   "backward with create_graph=true is not supported: gradients of gradients "
                   "cannot pass through a reduction. Compute the inner gradient with "
                   "torch::autograd::grad(..., create_graph=true), which is not reduced, and call "
                   "backward() of a loss made from it, which is");
}

void BackwardReduction::require_owner_of_shares() const {
  if (!divides() || plan_.empty() || shares_expected_) return;
  throw UsageError(where() +
                   "with whole_gradients = false each rank has only a part of the means, and no "
                   "optimizer was made that updates this part only. Make a lockstep::optim "
                   "optimizer from the wrapped model (Adam optimizer(model, 1e-3)), or leave "
                   "whole_gradients true");
}

void BackwardReduction::gradient_coming(int number, const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  std::unique_lock lock(mutex_);
  Parameter& parameter = parameters_[static_cast<std::size_t>(number)];
  if (parameter.divided_version >= 0) refuse_to_add_to_divided(parameter);
  if (!active_) {
    lock.unlock();
    return bypassed_outputs(parameter);
  }
  if (gradient.layout() != at::kStrided) {
    refuse("parameter " + parameter.name +
           " got a sparse gradient, which is not supported. Make the layer that uses it produce "
           "dense ones (Embedding: sparse(false))");
  }
  if (parameter.bucket < 0) return;
  Slot& slot = slots_[static_cast<std::size_t>(parameter.bucket)];
  if (slot.launched) {
    refuse(fmt::format(
        "parameter {} got another gradient after its bucket was launched: earlier backwards "
        "accumulated {} for it, this one more. Its gradient was not changed. Let the first "
        "backward use the parameter as often as the others do, or accumulate under no_sync()",
        parameter.name, parameter.whole_count));
  }
  slot.bucket.complete(parameter.slot);  // it will be added to
}

void BackwardReduction::gradient_accumulated(int number, bool defined) {
  const std::lock_guard lock(mutex_);
  Parameter& parameter = parameters_[static_cast<std::size_t>(number)];
  if (defined) parameter.used = true;
  if (plan_.empty()) parameter.last_tick = ++tick_;
  if (!active_) return;
  ++parameter.count;
  if (plan_.empty()) return;
  // A parameter that the first backward did not use may still get a gradient: it is ready only at
  // the end.
  if (parameter.whole_count == 0 || parameter.count < parameter.whole_count) return;
  // A parameter without a gradient may arrive again, which changes nothing.
  if (slots_[static_cast<std::size_t>(parameter.bucket)].launched) return;
  reducing([&] {
    contribute(parameter);
    if (parameter.count == parameter.whole_count) {
      --slots_[static_cast<std::size_t>(parameter.bucket)].missing;
      while (next_ < slots_.size() && slots_[next_].missing == 0) launch_next();
    }
    if (waiting_ < next_ && slots_[waiting_].work.poll()) trace_arrival(slots_[waiting_++]);
  });
}

void BackwardReduction::contribute(Parameter& parameter) {
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  Slot& slot = slots_[static_cast<std::size_t>(parameter.bucket)];
  const at::Tensor& view = slot.bucket.gradient(parameter.slot);
  if (gradient.defined() && gradient.layout() != at::kStrided) {
    refuse("parameter " + parameter.name + " has a sparse gradient, which is not supported");
  }
  parameter.kept.reset();
  parameter.divided_version = -1;
  if (finite_gradients_) check_contribution(parameter, slot.bucket);
  if (gradient.is_same(view)) {
    if (!parameter.used) parameter.kept = view.clone();
    return;
  }
  if (gradient.defined()) {
    slot.bucket.take(parameter.slot, gradient);
  } else {
    slot.bucket.take_zeros(parameter.slot);
  }
  // An unused gradient stays as it is, defined or not, until the trailer shows that another rank
  // used it.
  if (parameter.used) gradient = view;
}

// Called while the gradient is still in the cache.
void BackwardReduction::check_contribution(const Parameter& parameter, Bucket& bucket) {
  bucket.complete(parameter.slot);  // the view may lack a part that stayed elsewhere
  const int number = bucket.parameters()[static_cast<std::size_t>(parameter.slot)];
  finite_gradients_->contributed(number, parameter.tensor.grad());
}

void BackwardReduction::launch_next() {
  const TracedSpan span("launch bucket", static_cast<std::int64_t>(next_));
  Slot& slot = slots_[next_];
  const bool travels = !shares_are_due_;
  const SpanRecorder* const recorder = SpanRecorder::active();
  slot.launch = travels && recorder ? std::optional(recorder->launch()) : std::nullopt;
  slot.bucket.set_all_used();
  for (int index = 0; index < slot.bucket.size(); ++index) {
    const int number = slot.bucket.parameters()[static_cast<std::size_t>(index)];
    if (!parameters_[static_cast<std::size_t>(number)].used) slot.bucket.set_unused(index);
  }
  if (next_ == 0) slot.bucket.set_update_code(updates_.code());
  slot.launched = true;
  ++next_;
  slot.work = reduce(slot.bucket);
}

// Only for the trace.
void BackwardReduction::trace_arrival(Slot& slot) const {
  SpanRecorder* const recorder = SpanRecorder::active();
  if (recorder == nullptr || !slot.launch) return;
  recorder->arrive("bucket", static_cast<std::int32_t>(&slot - slots_.data()), *slot.launch);
  slot.launch.reset();
}

Work BackwardReduction::reduce(Bucket& bucket) {
  if (hook_) {
    bucket.complete();
    GradBucket seen(bucket, *group_, shares_expected_);
    try {
      return hook_(seen);
    } catch (const CallsDiffer&) {
      throw;
    } catch (const UsageError& error) {
      failure_ = error.what();  // what a hook refuses has nothing to do with batches
      throw;
    }
  }
  if (divides()) {
    bucket.complete();
    if (shares_are_due_) return {};
    return reduce_share(bucket);
  }
  return GroupAccess(*group_).all_reduce_pieces(bucket.flat(), bucket.release_pieces(),
                                                {.op = ReduceOp::mean});
}

void BackwardReduction::reduce_shares() {
  reducing([&] {
    if (take_over_shares()) reduce_buckets();
  });
}

AnnouncedStep BackwardReduction::announce(JoinStep mine) {
  if (!announces_) return {};
  const AnnouncedStep next = announce_step(*group_, mine);
  if (next.step != JoinStep::none) root_ = next.root;
  return next;
}

void BackwardReduction::follow_backward() {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  for (Parameter& parameter : parameters_) {
    if (parameter.tensor.grad().defined()) parameter.tensor.mutable_grad().zero_();
    parameter.used = false;
  }
  begin();
  finish();
}

// The root's order decides: rank 0's, or in join() that of the first rank with batches left. The
// ranks' orders may differ: in independent branches of the graph, and for parameters that only some
// ranks use.
void BackwardReduction::make_plan() {
  std::vector<std::int64_t> order(parameters_.size());
  std::iota(order.begin(), order.end(), 0);
  const auto when = [this](std::int64_t number) {
    const Parameter& parameter = parameters_[static_cast<std::size_t>(number)];
    return parameter.last_tick > 0 ? parameter.last_tick : tick_ + 1;  // unused ones last
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return when(a) < when(b); });
  order.push_back(first_draw_);
  order.push_back(hook_ ? 1 : 0);
  const at::Tensor shared = at::tensor(order, at::kLong).to(group_->device());
  group_->broadcast(shared, root_).wait();
  const at::Tensor local = shared.cpu();
  const std::int64_t* values = local.data_ptr<std::int64_t>();
  const std::vector<int> agreed(values, values + parameters_.size());
  warn_of_equal_draws(values[parameters_.size()]);
  const auto words = [](bool has_hook) {
    return has_hook ? "a communication hook" : "no communication hook";
  };
  const bool root_has_hook = values[parameters_.size() + 1] != 0;
  if (root_has_hook != (hook_ != nullptr)) {
    refuse(fmt::format("rank {} has {}, this rank {}; register the same on every rank", root_,
                       words(root_has_hook), words(hook_ != nullptr)));
  }

  std::vector<GradientSize> sizes;
  for (const Parameter& parameter : parameters_) sizes.push_back(parameter.size);
  plan_ = plan_buckets(sizes, agreed, limits_);
  slots_.reserve(plan_.size());
}

void BackwardReduction::add_bucket() {
  const PlannedBucket& planned = plan_[slots_.size()];
  std::vector<at::Tensor> tensors;
  for (const Parameter& parameter : parameters_) tensors.push_back(parameter.tensor);
  const int index = static_cast<int>(slots_.size());
  slots_.emplace_back(Bucket(index, planned, tensors, *group_, divides()));
  int position = 0;
  for (const int number : planned.parameters) {
    Parameter& parameter = parameters_[static_cast<std::size_t>(number)];
    parameter.bucket = index;
    parameter.slot = position++;
  }
}

void BackwardReduction::finish() {
  const at::NoGradGuard no_grad;
  std::string not_finite;
  std::string different_steps;
  reducing([&] {
    if (plan_.empty()) make_plan();
    while (next_ < plan_.size()) {
      const bool is_new = next_ == slots_.size();
      if (is_new) add_bucket();
      for (const int number : slots_[next_].bucket.parameters()) {
        Parameter& parameter = parameters_[static_cast<std::size_t>(number)];
        const bool ready = parameter.whole_count > 0 && parameter.count >= parameter.whole_count;
        if (!ready) contribute(parameter);
      }
      launch_next();
      // In the first backward buckets are made one at a time, and each frees the gradients that it
      // takes in before the next one is made, so that gradients do not exist twice.
      if (is_new) {
        slots_.back().work.wait();
        trace_arrival(slots_.back());
        if (group_->device().is_cpu()) give_back_freed_memory();
      }
    }
    for (Slot& slot : slots_) {
      slot.work.wait();
      trace_arrival(slot);
      if (finite_gradients_) finite_gradients_->reduced(slot.bucket);
      if (!divides()) settle(slot);
    }
    const bool one_step = divides() ? settle_shares() : slots_.front().bucket.has_one_update_code();
    if (!one_step) different_steps = compare_updates();
    if (finite_gradients_) not_finite = finite_gradients_->conclude(*group_);
  });
  next_ = 0;
  waiting_ = 0;
  active_ = false;
  if (std::exchange(any_bypassed_, false)) {
    for (Parameter& parameter : parameters_) parameter.at_bypass = {};
  }
  if (!different_steps.empty()) {
    throw UsageError(where() + "reducing gradients: " + different_steps);
  }
  if (not_finite.empty()) return;
  throw NonFiniteGradient(where() + "reducing gradients: " + not_finite +
                          ". Every rank has this error: clear the gradients "
                          "(optimizer.zero_grad()) and skip the step, or stop training");
}

// Hooks may train a model on each rank, and ranks without batches left may drop their gradients.
std::string BackwardReduction::compare_updates() {
  if (hook_ || announces_) return {};
  std::vector<at::Tensor> parameters;
  for (const Parameter& parameter : parameters_) parameters.push_back(parameter.tensor.detach());
  return updates_.compare(*group_, parameters);
}

// After a bucket's reduction: parameters that this rank did not use take the others' gradient, or
// get their own back if no rank used them.
void BackwardReduction::settle(Slot& slot, const Findings* shared) {
  for (int index = 0; index < slot.bucket.size(); ++index) {
    const int number = slot.bucket.parameters()[static_cast<std::size_t>(index)];
    Parameter& parameter = parameters_[static_cast<std::size_t>(number)];
    const bool used_anywhere = shared ? shared->used[static_cast<std::size_t>(number)] != 0
                                      : slot.bucket.used_by_any_rank(index);
    parameter.unused_everywhere = !parameter.used && !used_anywhere;
    const at::Tensor& view = slot.bucket.gradient(index);
    if (parameter.unused_everywhere) {
      if (parameter.kept.defined()) view.copy_(parameter.kept);
    } else if (!parameter.used) {
      parameter.tensor.mutable_grad() = view;
    }
    parameter.divided_version =
        divides() && parameter.tensor.grad().is_same(view) ? view._version() : -1;
    parameter.kept.reset();
    parameter.used = false;
    parameter.whole_count = std::max(parameter.whole_count, parameter.count);
    parameter.count = 0;
  }
  slot.missing = slot.bucket.size();
  slot.launched = false;
}

void BackwardReduction::refuse(const std::string& reason) {
  failure_ = reason;
  throw UsageError(where() + reason);
}

// The other ranks wait for this rank's part, which will not arrive.
void BackwardReduction::give_up(const std::string& reason) noexcept {
  active_ = false;
  reduces_at_end_ = false;
  try {
    if (failure_.empty()) failure_ = reason;
    group_->abort(where() + failure_);
  } catch (...) {
    // Then the peers notice when this rank leaves the group, or at their deadline.
  }
  for (Slot& slot : slots_) slot.work = Work();
  try {
    for (Slot& slot : slots_) slot.bucket.complete();
  } catch (...) {
    // Then gradients that were partly copied stay incomplete.
  }
}

void BackwardReduction::backward_failed() noexcept {
  give_up("backward ended with an exception on this rank");
}

}  // namespace lockstep
