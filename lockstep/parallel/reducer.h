// SPDX-License-Identifier: BSD-3-Clause
// Public. Averages the gradients of a list of parameters over the ranks during backward.
// DistributedDataParallel builds on it; use it directly if there is no module.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/group_argument.h"
#include "lockstep/parallel/comm_hook.h"
#include "lockstep/parallel/distributed_data_parallel_options.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

class BackwardReduction;

// While it lives, forwards are not synchronized: their backwards accumulate gradients on this rank
// only. The next synchronized backward reduces the sum. As in PyTorch, it matters whether the
// forward ran under it, not the backward.
class [[nodiscard]] NoSync {
 public:
  // Does nothing if the pointer is null.
  explicit NoSync(std::shared_ptr<int> depth) : depth_(std::move(depth)) {
    if (depth_) ++*depth_;
  }
  NoSync(NoSync&& other) noexcept = default;
  NoSync& operator=(NoSync&& other) noexcept {
    NoSync old(std::move(other));
    std::swap(depth_, old.depth_);
    return *this;
  }
  ~NoSync() {
    if (depth_) --*depth_;
  }

 private:
  std::shared_ptr<int> depth_;
};

// A step is prepare(outputs of forward), backward, optimizer step. At the end of backward each
// parameter's gradient is the mean over the ranks of their accumulated gradients, the same bits on
// every rank, in the memory of a bucket. Every rank runs the same sequence of synchronized
// backwards; the parameters that a backward uses may differ between ranks. A parameter that no rank
// has used since the last reduction keeps its gradient bit for bit, or stays without one.
//
// Until backward returns, do not rely on or modify an accumulated .grad, for example in a hook: it
// belongs to the reducer and need not be this rank's gradient.
//
// Keep gradients as in one process: a .grad that the program still holds, or a view of it, keeps
// its values if .grad is reset to none before the next backward (zero_grad(true)). What is zeroed
// or added to in place changes for every holder.
//
// A backward that reaches parameters around the prepared outputs (a penalty in a backward of its
// own, a loss that the module keeps, a forward of the module itself) is reduced as well, at its
// end, if a synchronized prepare() has been called since the parameters last changed: .grad is then
// the mean of all that it has accumulated. Otherwise, under no_sync() and in join(), it accumulates
// on this rank only, as a generator's step through the discriminator wants. UsageError if the
// parameters are then updated without a reduction: at the latest in the next prepare(). (On GPUs,
// updates by torch::optim::SGD are not seen.) Gradients under no_sync() are meant to stay, and are
// no error. One backward of the sum of the losses is faster than several, since each reduces all
// gradients.
//
// torch::autograd::grad() gives each rank its own gradients, as in PyTorch; functional::grad()
// averages them.
//
// Backward throws PeerLost or TimeoutError if another rank does not take part. It throws UsageError
// for create_graph, for sparse gradients, and for a parameter that gets more gradients than in the
// first backward after its bucket was launched. On CPUs it also does so, on every rank, if the
// ranks are in different steps: their parameters were changed differently often, and differ. A
// closure that each rank calls as often as its own loss demands (LBFGS) does that. If backward
// throws on this rank, the group is aborted so that no peer waits for it, and the next prepare()
// reports that. Only the errors that every rank has, NonFiniteGradient (check_finite) and the
// error of different steps, leave the group and the reducer usable.
//
// The first backward launches nothing before its end: it learns the order
// (docs/decisions/0001-first-step-plans-the-buckets.md). In a group of one rank nothing is hooked
// or reduced unless check_finite is set.
//
// Not thread-safe. Keeps the group alive; parameters may outlive the reducer and keep their
// gradients.
//
// Reducers may share a group if every rank starts their reductions in the same order: if their
// backwards run one after another, or if one backward runs through several of them on one thread,
// with the same graph on every rank. Give each reducer its own group (ProcessGroup::split) if their
// backwards run at the same time in several threads, as they do on several GPUs, or if the graph or
// the parameters that it uses differ between ranks.
class Reducer {
 public:
  // Collective. Parameters that appear twice are taken once; frozen ones are not touched.
  // UsageError on every rank if names, shapes, types or requires_grad differ between ranks, or if
  // no parameter requires a gradient.
  Reducer(const std::vector<NamedTensor>& parameters, GroupArgument group,
          const ReducerOptions& options = {});
  // Names the parameters by their positions.
  Reducer(const std::vector<at::Tensor>& parameters, GroupArgument group,
          const ReducerOptions& options = {});

  // Use the results instead of the outputs, whose values and memory they share: backward through
  // them is synchronized. Outputs that require no gradient are returned unchanged, as is everything
  // under at::NoGradGuard. UsageError if a parameter was frozen, unfrozen, converted, moved or
  // resized since construction, or was updated with gradients that were not reduced; Error after a
  // failed backward.
  [[nodiscard]] at::Tensor prepare(const at::Tensor& output);
  [[nodiscard]] std::vector<at::Tensor> prepare(std::vector<at::Tensor> outputs);

  // `active` is for loops in which only some forwards are not synchronized.
  NoSync no_sync(bool active = true) const { return NoSync(active ? no_sync_depth_ : nullptr); }
  bool synchronizes() const { return *no_sync_depth_ == 0; }

  // Replaces the reduction, by default group.all_reduce with ReduceOp::mean, like PyTorch's
  // communication hooks. Register the same function on every rank, and not while a backward runs. A
  // hook reduces whole buckets, even with whole_gradients = false, which then saves nothing. In a
  // group of one rank it is not called, unless check_finite is set.
  void register_comm_hook(CommHook hook);

  // Names of the parameters that no rank used between the last two reductions.
  std::vector<std::string> unused_parameters() const;

  // Internal: what the wrapper, join() and optimizers use.
  const std::shared_ptr<BackwardReduction>& reduction() const { return reduction_; }

 private:
  std::shared_ptr<int> no_sync_depth_ = std::make_shared<int>(0);
  std::shared_ptr<BackwardReduction> reduction_;
};

}  // namespace lockstep
