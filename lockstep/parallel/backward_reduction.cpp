// SPDX-License-Identifier: BSD-3-Clause
// Counts gradients, launches buckets in order, and finishes at the end of backward.
#include "lockstep/parallel/backward_reduction.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/graph_task.h>

#include "lockstep/comm/core/call.h"
#include "lockstep/core/error.h"
#include "lockstep/core/process/freed_memory.h"
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

std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& parameters) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& parameter : parameters) tensors.push_back(parameter.tensor);
  return tensors;
}

}  // namespace

class BackwardReduction::UnsynchronizedEntry final : public BackwardListener {
 public:
  explicit UnsynchronizedEntry(std::weak_ptr<BackwardReduction> reduction)
      : reduction_(std::move(reduction)) {}

  void backward_entered() override {
    const auto reduction = reduction_.lock();
    if (!reduction || reduction->accumulates_nothing()) return;
    const std::lock_guard lock(reduction->mutex_);
    if (std::exchange(reduction->unsynchronized_, true)) return;
    at_end_of_backward<BackwardReduction>(reduction, &BackwardReduction::end_unsynchronized,
                                          &BackwardReduction::end_unsynchronized);
  }

 private:
  std::weak_ptr<BackwardReduction> reduction_;
};

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
    : wrapped_(all, group.where()),
      group_(std::move(group)),
      options_(options),
      limits_(limits),
      buckets_(tensors_of(reduced), !options.whole_gradients && group_->size() > 1),
      bypassing_(reduced, group_.where()),
      divided_(buckets_, group_, bypassing_),
      no_sync_depth_(std::move(no_sync_depth)) {
  parameters_.reserve(reduced.size());
  for (const NamedTensor& parameter : reduced) {
    parameters_.emplace_back(parameter, static_cast<int>(parameters_.size()), *this);
  }
  if (!options_.check_finite) return;
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters_) names.push_back(parameter.name);
  finite_gradients_.emplace(std::move(names));
}

void BackwardReduction::check() {
  wrapped_.check();
  group_.require_usable();
  bypassing_.refuse_updates();
  for (Parameter& parameter : parameters_) {
    if (parameter.hooks.on(parameter.tensor)) continue;
    // A graph of an earlier forward may still lead to the accumulator that it had.
    std::erase_if(parameter.earlier_hooks,
                  [](const GradientHooks& hooks) { return hooks.alone(); });
    parameter.earlier_hooks.push_back(std::move(parameter.hooks));
    parameter.hooks = GradientHooks(parameter.tensor, parameter.number, *this);
  }
}

void BackwardReduction::watch(std::span<at::Tensor* const> outputs, NodeNumber before_forward) {
  if (parameters_.empty() || !at::GradMode::is_enabled()) return;
  std::shared_ptr<BackwardListener> listener;
  if (*no_sync_depth_ == 0) {
    bypassing_.begin_step();
    listener = shared_from_this();
  } else {
    if (!unsynchronized_entry_) {
      unsynchronized_entry_ = std::make_shared<UnsynchronizedEntry>(weak_from_this());
    }
    listener = unsynchronized_entry_;
  }
  for (at::Tensor* output : outputs) {
    if (output->defined() && output->requires_grad()) {
      watch_entry(*output, listener, before_forward);
    }
  }
}

std::vector<std::string> BackwardReduction::unused_parameters() const {
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters_) {
    if (parameter.unused_everywhere) names.push_back(parameter.name);
  }
  return names;
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
  group_.require_usable();
  if (active_) return;  // another output, or a nested backward
  divided_.require_owner_of_shares();
  reducing([&] { group_.announce(JoinStep::reduce_gradients); });
  if (buckets_.plan().empty()) {
    for (Parameter& parameter : parameters_) parameter.last_tick = 0;  // of earlier backwards
  }
  begin();
  at_end_of_backward(shared_from_this(), &BackwardReduction::finish,
                     &BackwardReduction::backward_failed);
}

void BackwardReduction::refuse_create_graph() const {
  if (!at::GradMode::is_enabled()) return;
  throw UsageError(group_.where() +
                   "backward with create_graph=true is not supported: gradients of gradients "
                   "cannot pass through a reduction. Compute the inner gradient with "
                   "torch::autograd::grad(..., create_graph=true), which is not reduced, and call "
                   "backward() of a loss made from it, which is");
}

void BackwardReduction::gradient_coming(int number, const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  std::unique_lock lock(mutex_);
  const Parameter& parameter = at(number);
  if (divided_.is_share(number)) {
    const std::string reason =
        "parameter " + parameter.name +
        " would add its gradient to one that is divided among the ranks "
        "(whole_gradients = false). Add up the losses and call backward() once, accumulate under "
        "no_sync(), or call optimizer.zero_grad() before the next backward";
    if (active_) group_.refuse(reason);
    throw UsageError(group_.where() + reason);  // nothing was begun, so the group stays usable
  }
  if (!active_) {
    lock.unlock();
    return bypassed_outputs(parameter);
  }
  if (gradient.layout() != at::kStrided) {
    group_.refuse("parameter " + parameter.name +
                  " got a sparse gradient, which is not supported. Make the layer that uses it "
                  "produce dense ones (Embedding: sparse(false))");
  }
  const GradientBuckets::Place place = buckets_.place(number);
  if (place.bucket < 0) return;
  const auto bucket = static_cast<std::size_t>(place.bucket);
  if (slots_[bucket].launched) {
    group_.refuse(fmt::format(
        "parameter {} got another gradient after its bucket was launched: earlier backwards "
        "accumulated {} for it, this one more. Its gradient was not changed. Let the first "
        "backward use the parameter as often as the others do, or accumulate under no_sync()",
        parameter.name, parameter.whole_count));
  }
  buckets_[bucket].complete(place.index);  // it will be added to
}

// A gradient that has come around the outputs. Ranks run the same program, so all of them reduce,
// or none. They do so at the end: a parameter may also be in another wrapper that reduces it now,
// and an inner backward may end before the one that contains it. The mean of what was a mean
// already and of what has been added to it is the mean of the sums.
void BackwardReduction::bypassed_outputs(const Parameter& parameter) {
  if (parameter.hooks.is_reduced_elsewhere(*this)) return;
  const std::lock_guard lock(mutex_);
  if (unsynchronized_ || reduces_at_end_ || *no_sync_depth_ > 0) return;
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
  Parameter& parameter = at(number);
  if (defined) parameter.used = true;
  const bool has_plan = !buckets_.plan().empty();
  if (!has_plan) parameter.last_tick = ++tick_;
  if (!active_) return;
  ++parameter.count;
  if (!has_plan) return;
  // A parameter that the first backward did not use may still get a gradient: it is ready only at
  // the end.
  if (parameter.whole_count == 0 || parameter.count < parameter.whole_count) return;
  // A parameter without a gradient may arrive again, which changes nothing.
  Slot& slot = slots_[static_cast<std::size_t>(buckets_.place(number).bucket)];
  if (slot.launched) return;
  reducing([&] {
    contribute(parameter);
    if (parameter.count == parameter.whole_count) {
      --slot.missing;
      while (next_ < slots_.size() && slots_[next_].missing == 0) launch_next();
    }
    if (waiting_ < next_ && slots_[waiting_].work.poll()) trace_arrival(slots_[waiting_++]);
  });
}

void BackwardReduction::contribute(Parameter& parameter) {
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  const GradientBuckets::Place place = buckets_.place(parameter.number);
  Bucket& bucket = buckets_[static_cast<std::size_t>(place.bucket)];
  if (gradient.defined() && gradient.layout() != at::kStrided) {
    group_.refuse("parameter " + parameter.name + " has a sparse gradient, which is not supported");
  }
  parameter.kept.reset();
  divided_.forget(parameter.number);
  if (finite_gradients_) {         // while the gradient is still in the cache
    bucket.complete(place.index);  // the view may lack a part that stayed elsewhere
    finite_gradients_->contributed(parameter.number, gradient);
  }
  const at::Tensor& view = bucket.gradient(place.index);
  if (gradient.is_same(view)) {
    if (!parameter.used) parameter.kept = view.clone();
    return;
  }
  if (gradient.defined()) {
    bucket.take(place.index, gradient);
  } else {
    bucket.take_zeros(place.index);
  }
  // An unused gradient stays as it is, defined or not, until the trailer shows that another rank
  // used it.
  if (parameter.used) gradient = bucket.gradient(place.index);
}

void BackwardReduction::launch_next() {
  const TracedSpan span("launch bucket", static_cast<std::int64_t>(next_));
  Slot& slot = slots_[next_];
  Bucket& bucket = buckets_[next_];
  const bool travels = !divided_.shares_are_due();
  const SpanRecorder* const recorder = SpanRecorder::active();
  slot.launch = travels && recorder ? std::optional(recorder->launch()) : std::nullopt;
  bucket.set_all_used();
  for (int index = 0; index < bucket.size(); ++index) {
    if (!at(bucket.parameters()[static_cast<std::size_t>(index)]).used) bucket.set_unused(index);
  }
  if (next_ == 0) bucket.set_update_code(bypassing_.updates().code());
  slot.launched = true;
  ++next_;
  slot.work = reduce(bucket);
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
  for (Parameter& parameter : parameters_) {
    if (parameter.tensor.grad().defined()) parameter.tensor.mutable_grad().zero_();
    parameter.used = false;
  }
  begin();
  finish();
}

// The order of the root decides: that of rank 0, or in join() that of the first rank with batches
// left. The orders of the ranks may differ: in independent branches of the graph, and for
// parameters that only some ranks use.
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
  const int root = group_.last_root();
  const at::Tensor shared = at::tensor(order, at::kLong).to(group_->device());
  group_->broadcast(shared, root).wait();
  const at::Tensor local = shared.cpu();
  const std::int64_t* values = local.data_ptr<std::int64_t>();
  const std::vector<int> agreed(values, values + parameters_.size());
  if (root == 0) warn_of_equal_draws(*group_, first_draw_, values[parameters_.size()]);
  const auto words = [](bool has_hook) {
    return has_hook ? "a communication hook" : "no communication hook";
  };
  const bool root_has_hook = values[parameters_.size() + 1] != 0;
  if (root_has_hook != (hook_ != nullptr)) {
    group_.refuse(fmt::format("rank {} has {}, this rank {}; register the same on every rank", root,
                              words(root_has_hook), words(hook_ != nullptr)));
  }

  std::vector<GradientSize> sizes;
  for (const at::Tensor& tensor : buckets_.parameters()) {
    sizes.push_back({tensor.numel(), tensor.scalar_type(), tensor.device()});
  }
  buckets_.set_plan(plan_buckets(sizes, agreed, limits_));
  slots_.reserve(buckets_.plan().size());
}

// Launches the buckets that are left at the end of backward. In the first backward they are made
// one at a time, and each frees the gradients that it takes in before the next one is made, so that
// gradients do not exist twice.
void BackwardReduction::launch_rest() {
  while (next_ < buckets_.plan().size()) {
    const bool is_new = next_ == buckets_.size();
    if (is_new) slots_.push_back({.missing = buckets_.add(*group_).size()});
    for (const int number : buckets_[next_].parameters()) {
      Parameter& parameter = at(number);
      const bool ready = parameter.whole_count > 0 && parameter.count >= parameter.whole_count;
      if (!ready) contribute(parameter);
    }
    launch_next();
    if (!is_new) continue;
    slots_.back().work.wait();
    trace_arrival(slots_.back());
    if (group_->device().is_cpu()) give_back_freed_memory();
  }
}

void BackwardReduction::finish() {
  const at::NoGradGuard no_grad;
  std::string not_finite;
  std::string different_steps;
  reducing([&] {
    if (buckets_.plan().empty()) make_plan();
    launch_rest();
    const bool divides = divided_.divides();
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      slots_[i].work.wait();
      trace_arrival(slots_[i]);
      if (finite_gradients_) finite_gradients_->reduced(buckets_[i]);
      if (!divides) settle(i, nullptr);
    }
    bool one_step = true;
    if (divides) {
      const Findings findings = exchange_findings();
      for (std::size_t i = 0; i < slots_.size(); ++i) settle(i, &findings);
      one_step = std::ranges::count(findings.update_codes, 1) == 1;
    } else {
      one_step = buckets_[0].has_one_update_code();
    }
    if (!one_step) different_steps = compare_updates();
    if (finite_gradients_) not_finite = finite_gradients_->conclude(*group_);
  });
  next_ = 0;
  waiting_ = 0;
  active_ = false;
  bypassing_.clear();
  if (!different_steps.empty()) {
    throw UsageError(group_.where() + "reducing gradients: " + different_steps);
  }
  if (not_finite.empty()) return;
  throw NonFiniteGradient(group_.where() + "reducing gradients: " + not_finite +
                          ". Every rank has this error: clear the gradients "
                          "(optimizer.zero_grad()) and skip the step, or stop training");
}

// No rank sees the trailers, or the whole means, of buckets that stay divided.
Findings BackwardReduction::exchange_findings() {
  Findings findings(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) findings.used[i] = parameters_[i].used;
  if (finite_gradients_) {
    for (const int number : std::exchange(finite_gradients_->found(), {})) {
      findings.not_finite[static_cast<std::size_t>(number)] = 1;
    }
  }
  findings.update_codes[static_cast<std::size_t>(bypassing_.updates().code())] = 1;
  divided_.share(findings);
  for (std::size_t i = 0; finite_gradients_ && i < parameters_.size(); ++i) {
    if (findings.not_finite[i] != 0) finite_gradients_->found().push_back(static_cast<int>(i));
  }
  return findings;
}

// After the reduction of a bucket: parameters that this rank did not use take the gradient of the
// others, or get their own back if no rank used them.
void BackwardReduction::settle(std::size_t number, const Findings* findings) {
  const Bucket& bucket = buckets_[number];
  for (int index = 0; index < bucket.size(); ++index) {
    Parameter& parameter = at(bucket.parameters()[static_cast<std::size_t>(index)]);
    const bool used_anywhere = findings
                                   ? findings->used[static_cast<std::size_t>(parameter.number)] != 0
                                   : bucket.used_by_any_rank(index);
    parameter.unused_everywhere = !parameter.used && !used_anywhere;
    const at::Tensor& view = bucket.gradient(index);
    if (parameter.unused_everywhere) {
      if (parameter.kept.defined()) view.copy_(parameter.kept);
    } else if (!parameter.used) {
      parameter.tensor.mutable_grad() = view;
    }
    divided_.settle(parameter.number);
    parameter.kept.reset();
    parameter.used = false;
    parameter.whole_count = std::max(parameter.whole_count, parameter.count);
    parameter.count = 0;
  }
  slots_[number].missing = bucket.size();
  slots_[number].launched = false;
}

// Hooks may train a model on each rank, and ranks without batches left may drop their gradients.
std::string BackwardReduction::compare_updates() {
  if (hook_ || group_.announces_steps()) return {};
  std::vector<at::Tensor> parameters;
  for (const Parameter& parameter : parameters_) parameters.push_back(parameter.tensor.detach());
  return bypassing_.updates().compare(*group_, parameters);
}

void BackwardReduction::clear() noexcept {
  active_ = false;
  reduces_at_end_ = false;
  for (Slot& slot : slots_) slot.work = Work();
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
