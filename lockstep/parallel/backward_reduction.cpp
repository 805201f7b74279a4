// SPDX-License-Identifier: BSD-3-Clause
// Counts gradients, launches buckets in order, and finishes at the end of backward.
#include "lockstep/parallel/backward_reduction.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/comm/core/call.h"
#include "lockstep/core/error.h"
#include "lockstep/core/process/memory.h"
#include "lockstep/core/trace_span.h"
#include "lockstep/parallel/errors.h"

namespace lockstep {
namespace {

// The parameters that are hooked and reduced: none if there is nothing to exchange or check.
std::vector<NamedTensor> to_reduce(const std::vector<NamedTensor>& parameters,
                                   const ProcessGroup& group, const ReducerOptions& options) {
  std::vector<NamedTensor> taken;
  if (group.size() == 1 && !options.check_finite) return taken;
  std::ranges::copy_if(parameters, std::back_inserter(taken), [](const NamedTensor& parameter) {
    return parameter.tensor.requires_grad();
  });
  return taken;
}

}  // namespace

BackwardReduction::BackwardReduction(const std::vector<NamedTensor>& parameters,
                                     std::shared_ptr<ProcessGroup> group, BucketLimits limits,
                                     const ReducerOptions& options,
                                     std::shared_ptr<const int> no_sync_depth)
    : BackwardReduction(parameters, to_reduce(parameters, *group, options), ReducerGroup(group),
                        limits, options, std::move(no_sync_depth)) {}

BackwardReduction::BackwardReduction(const std::vector<NamedTensor>& all,
                                     const std::vector<NamedTensor>& reduced, ReducerGroup group,
                                     BucketLimits limits, const ReducerOptions& options,
                                     std::shared_ptr<const int> no_sync_depth)
    : group_(std::move(group)),
      wrapped_(all, group_.context()),
      parameters_(reduced, *this),
      first_backward_(reduced.size(), limits),
      buckets_(reduced, !options.whole_gradients && group_->size() > 1),
      bypassing_(reduced, group_.context()),
      divided_(buckets_, group_, bypassing_),
      no_sync_depth_(std::move(no_sync_depth)) {
  if (!options.check_finite) return;
  std::vector<std::string> names;
  for (const NamedTensor& parameter : reduced) names.push_back(parameter.name);
  finite_gradients_.emplace(std::move(names));
}

void BackwardReduction::check() {
  wrapped_.check();
  group_.require_usable();
  bypassing_.refuse_updates();
  parameters_.renew_hooks();
}

void BackwardReduction::watch(std::span<at::Tensor* const> outputs, NodeNumber before_forward) {
  if (parameters_.empty() || !at::GradMode::is_enabled()) return;
  std::shared_ptr<BackwardListener> listener;
  if (*no_sync_depth_ == 0) {
    bypassing_.begin_step();
    listener = shared_from_this();
  } else {
    if (!unsynchronized_) {
      const std::shared_ptr<const ReducedParameters> parameters(shared_from_this(), &parameters_);
      unsynchronized_ = std::make_shared<UnsynchronizedBackward>(parameters);
    }
    listener = unsynchronized_;
  }
  for (at::Tensor* output : outputs) {
    if (output->defined() && output->requires_grad()) {
      watch_entry(*output, listener, before_forward);
    }
  }
}

// Runs a function that uses the group. After an error nothing is left of the backward.
template <class Function>
void BackwardReduction::reducing(Function&& function) {
  try {
    group_.reduce(function);
  } catch (...) {
    clear();
    throw;
  }
}

void BackwardReduction::begin() {
  active_ = true;
  divided_.begin(/*may_defer=*/!hook_ && !finite_gradients_);
}

void BackwardReduction::backward_entered() {
  if (parameters_.accumulate_nothing()) return;
  refuse_create_graph();
  const std::lock_guard lock(mutex_);
  group_.require_usable();
  if (active_) return;  // another output, or a nested backward
  divided_.require_owner_of_shares();
  reducing([&] { group_.announce(JoinStep::reduce_gradients); });
  if (buckets_.plan().empty()) first_backward_.forget_order();
  begin();
  at_end_of_backward(shared_from_this(), &BackwardReduction::finish,
                     &BackwardReduction::backward_failed);
}

void BackwardReduction::refuse_create_graph() const {
  if (!at::GradMode::is_enabled()) return;
  throw UsageError(group_.context(),
                   "backward with create_graph=true is not supported: gradients of gradients "
                   "cannot pass through a reduction",
                   "compute the inner gradient with torch::autograd::grad(..., create_graph=true), "
                   "which is not reduced, and call backward() of a loss made from it, which is");
}

void BackwardReduction::gradient_coming(int number, const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  std::unique_lock lock(mutex_);
  const ReducedParameter& parameter = parameters_[number];
  if (divided_.is_share(number)) divided_.refuse_addition(parameter.name, active_);
  if (!active_) {
    lock.unlock();
    return bypassed_outputs(parameter);
  }
  if (gradient.layout() != at::kStrided) {
    group_.refuse("parameter " + parameter.name + " got a sparse gradient, which is not supported",
                  "make the layer that uses it produce dense ones (Embedding: sparse(false))");
  }
  const GradientBuckets::Place place = buckets_.place(number);
  if (place.bucket < 0) return;
  const auto bucket = static_cast<std::size_t>(place.bucket);
  if (launches_.is_launched(bucket)) {
    group_.refuse(
        fmt::format("parameter {} got another gradient after its bucket was launched: "
                    "earlier backwards accumulated {} for it, this one more. Its gradient "
                    "was not changed",
                    parameter.name, parameter.whole_count),
        "let the first backward use the parameter as often as the others do, or "
        "accumulate under no_sync()");
  }
  buckets_[bucket].complete(place.index);  // it will be added to
}

// A gradient that has come around the outputs. Ranks run the same program, so all of them reduce,
// or none. They do so at the end: a parameter may also be in another wrapper that reduces it now,
// and an inner backward may end before the one that contains it. The mean of what was a mean
// already and of what has been added to it is the mean of the sums.
void BackwardReduction::bypassed_outputs(const ReducedParameter& parameter) {
  if (parameter.hooks.is_reduced_elsewhere(*this)) return;
  const std::lock_guard lock(mutex_);
  if (reduces_at_end_ || *no_sync_depth_ > 0) return;
  if (unsynchronized_ && unsynchronized_->is_running()) return;
  // Ranks without batches left could not tell such a reduction from another step.
  if (bypassing_.belongs_to_step(parameter.number) && !group_.announces_steps()) {
    refuse_create_graph();
    group_.require_usable();
    divided_.require_owner_of_shares();
    reduces_at_end_ = true;
    at_end_of_backward(shared_from_this(), &BackwardReduction::finish_bypass,
                       &BackwardReduction::backward_failed);
  } else if (group_->size() > 1) {
    bypassing_.keep_on_this_rank(parameter.number);
  }
}

void BackwardReduction::finish_bypass() {
  reduces_at_end_ = false;
  if (active_) return;  // it has entered through an output as well
  begin();
  finish();
}

bool BackwardReduction::is_reducing() {
  const std::lock_guard lock(mutex_);
  return active_ || reduces_at_end_;
}

void BackwardReduction::gradient_accumulated(int number, bool defined) {
  const std::lock_guard lock(mutex_);
  ReducedParameter& parameter = parameters_[number];
  if (defined) parameter.used = true;
  const bool has_plan = !buckets_.plan().empty();
  if (!has_plan) first_backward_.gradient_accumulated(number);
  if (!active_) return;
  ++parameter.count;
  if (!has_plan || !parameter.is_ready()) return;
  // A parameter without a gradient may arrive again, which changes nothing.
  const auto bucket = static_cast<std::size_t>(buckets_.place(number).bucket);
  if (launches_.is_launched(bucket)) return;
  reducing([&] {
    contribute(parameter);
    if (parameter.count == parameter.whole_count) {
      launches_.gradient_is_ready(bucket);
      while (launches_.next_is_complete()) launch_next();
    }
    launches_.poll();
  });
}

void BackwardReduction::contribute(ReducedParameter& parameter) {
  const at::Tensor& gradient = parameter.tensor.grad();
  const GradientBuckets::Place place = buckets_.place(parameter.number);
  Bucket& bucket = buckets_[static_cast<std::size_t>(place.bucket)];
  if (gradient.defined() && gradient.layout() != at::kStrided) {
    group_.refuse("parameter " + parameter.name + " has a sparse gradient, which is not supported");
  }
  divided_.forget(parameter.number);
  if (finite_gradients_) {         // while the gradient is still in the cache
    bucket.complete(place.index);  // the view may lack a part that stayed elsewhere
    finite_gradients_->contributed(parameter.number, gradient);
  }
  parameter.put_into(bucket, place.index);
}

void BackwardReduction::launch_next() {
  const TracedSpan span("launch bucket", static_cast<std::int64_t>(launches_.next()));
  const std::size_t launched = launches_.launch(/*travels=*/!divided_.shares_are_due());
  Bucket& bucket = buckets_[launched];
  bucket.set_all_used();
  for (int index = 0; index < bucket.size(); ++index) {
    const int number = bucket.parameters()[static_cast<std::size_t>(index)];
    if (!parameters_[number].used) bucket.set_unused(index);
  }
  if (launched == 0) bucket.set_update_code(bypassing_.update_code());
  launches_.started(launched, reduce(bucket));
}

Work BackwardReduction::reduce(Bucket& bucket) {
  if (hook_) {
    bucket.complete();
    GradBucket seen(bucket, *group_, divided_.shares_expected());
    try {
      return hook_(seen);
    } catch (const CallsDiffer&) {
      throw;
    } catch (const UsageError& error) {
      group_.note_refusal(error);  // what a hook refuses has nothing to do with batches
      throw;
    }
  }
  if (divided_.divides()) return divided_.reduce(bucket);
  return group_->all_reduce_pieces(bucket.flat(), bucket.release_pieces(), {.op = ReduceOp::mean});
}

void BackwardReduction::follow_backward() {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  for (ReducedParameter& parameter : parameters_) {
    if (parameter.tensor.grad().defined()) parameter.tensor.mutable_grad().zero_();
    parameter.used = false;
  }
  begin();
  finish();
}

// Launches the buckets that are left at the end of backward. In the first backward they are made
// one at a time, and each frees the gradients that it takes in before the next one is made, so that
// gradients do not exist twice.
void BackwardReduction::launch_rest() {
  while (launches_.next() < buckets_.plan().size()) {
    const std::size_t bucket = launches_.next();
    const bool is_new = bucket == buckets_.size();
    if (is_new) launches_.add(buckets_.add(*group_).size());
    for (const int number : buckets_[bucket].parameters()) {
      if (!parameters_[number].is_ready()) contribute(parameters_[number]);
    }
    launch_next();
    if (!is_new) continue;
    launches_.wait(bucket);
    if (group_->device().is_cpu()) give_back_freed_memory();
  }
}

void BackwardReduction::finish() {
  const at::NoGradGuard no_grad;
  std::string not_finite;
  std::string different_steps;
  reducing([&] {
    if (buckets_.plan().empty()) {
      buckets_.set_plan(first_backward_.plan(group_, buckets_.parameters(), hook_ != nullptr));
      launches_.reserve(buckets_.plan().size());
    }
    launch_rest();
    const bool divides = divided_.divides();
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      launches_.wait(i);
      if (finite_gradients_) finite_gradients_->reduced(buckets_[i]);
      if (!divides) settle(i, nullptr);
    }
    bool one_step = true;
    if (divides) {
      const Findings findings = exchange_findings();
      for (std::size_t i = 0; i < buckets_.size(); ++i) settle(i, &findings);
      one_step = std::ranges::count(findings.update_codes, 1) == 1;
    } else {
      one_step = buckets_[0].has_one_update_code();
    }
    // Hooks may train a model on each rank, and ranks without batches left may drop their
    // gradients.
    if (!one_step && !hook_ && !group_.announces_steps()) {
      different_steps = bypassing_.compare_updates(*group_);
    }
    if (finite_gradients_) not_finite = finite_gradients_->conclude(*group_);
  });
  launches_.restart();
  active_ = false;
  bypassing_.clear();
  if (!different_steps.empty()) {
    throw UsageError(group_.context(kReducingGradients), different_steps);
  }
  if (not_finite.empty()) return;
  throw NonFiniteGradient(group_.context(kReducingGradients), not_finite,
                          "every rank has this error: clear the gradients (optimizer.zero_grad()) "
                          "and skip the step, or stop training");
}

// No rank sees the trailers, or the whole means, of buckets that stay divided.
Findings BackwardReduction::exchange_findings() {
  Findings findings(parameters_.size());
  for (const ReducedParameter& parameter : parameters_) {
    findings.used[static_cast<std::size_t>(parameter.number)] = parameter.used;
  }
  if (finite_gradients_) findings.not_finite = finite_gradients_->found();
  findings.update_codes[static_cast<std::size_t>(bypassing_.update_code())] = 1;
  divided_.share(findings);
  if (finite_gradients_) finite_gradients_->found() = findings.not_finite;
  return findings;
}

// After the reduction of a bucket, or with the findings that all ranks have exchanged.
void BackwardReduction::settle(std::size_t number, const Findings* findings) {
  const Bucket& bucket = buckets_[number];
  for (int index = 0; index < bucket.size(); ++index) {
    const int parameter = bucket.parameters()[static_cast<std::size_t>(index)];
    const bool used = findings ? findings->used[static_cast<std::size_t>(parameter)] != 0
                               : bucket.used_by_any_rank(index);
    parameters_[parameter].settle(bucket.gradient(index), used);
    divided_.settle(parameter);
  }
}

void BackwardReduction::clear() noexcept {
  active_ = false;
  reduces_at_end_ = false;
  launches_.drop();
  try {
    for (Bucket& bucket : buckets_) bucket.complete();
  } catch (...) {
    // Then gradients that were partly copied stay incomplete.
  }
}

void BackwardReduction::backward_failed() noexcept {
  group_.end("backward ended with an exception on this rank");
  clear();
}

}  // namespace lockstep
