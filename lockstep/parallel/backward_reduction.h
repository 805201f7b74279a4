// SPDX-License-Identifier: BSD-3-Clause
// One backward pass, the core of Reducer: gradients become ready, buckets are launched, and at the
// end everything is reduced and .grad are views of the buckets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/backward_hooks.h"
#include "lockstep/parallel/bucket.h"
#include "lockstep/parallel/bypassing_gradients.h"
#include "lockstep/parallel/comm_hook.h"
#include "lockstep/parallel/distributed_data_parallel_options.h"
#include "lockstep/parallel/divided_reduction.h"
#include "lockstep/parallel/finite_gradients.h"
#include "lockstep/parallel/first_backward.h"
#include "lockstep/parallel/misuse_checks.h"
#include "lockstep/parallel/reduced_parameters.h"
#include "lockstep/parallel/reducer_group.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// Owned by its Reducer and by the graphs that lead to it, so that a backward may run after the
// Reducer is gone. In a group of one rank without check_finite it has no parameters: it hooks and
// reduces nothing.
class BackwardReduction final : public BackwardListener,
                                public GradientListener,
                                public std::enable_shared_from_this<BackwardReduction> {
 public:
  // The parameters are distinct leaves. Those that require no gradient are left out.
  // `no_sync_depth`: the number of live NoSync guards.
  BackwardReduction(const std::vector<NamedTensor>& parameters, std::shared_ptr<ProcessGroup> group,
                    BucketLimits limits, const ReducerOptions& options,
                    std::shared_ptr<const int> no_sync_depth);

  // Prepares for a forward: parameters whose data was replaced, as torch::load does, get their
  // hooks again. UsageError if a parameter was frozen, unfrozen, converted, moved or resized, or
  // has been updated with a gradient that was not reduced; Error if a backward has failed.
  void check();
  // Lets this object learn of backwards through the outputs of a forward, which is synchronized
  // unless no_sync() is held. `before_forward` is the next node number of autograd, read before
  // forward.
  void watch(std::span<at::Tensor* const> outputs, NodeNumber before_forward);
  // The hook replaces the all_reduce.
  void register_comm_hook(CommHook hook) { hook_ = std::move(hook); }
  // Names of the parameters that no rank used between the last two reductions.
  std::vector<std::string> unused_parameters() const { return parameters_.unused(); }
  // The state from which the first forward has drawn random numbers, 0 if it drew none; compared
  // between the ranks in the first backward.
  void set_first_draw(std::int64_t state) { first_backward_.set_first_draw(state); }

  ReducerGroup& group() { return group_; }
  DividedReduction& divided() { return divided_; }
  // Takes part in a backward of the other ranks that was announced. First zeroes the gradients of
  // this rank; afterwards each .grad is the mean over the ranks.
  void follow_backward();

  void backward_entered() override;
  void gradient_coming(int parameter, const at::Tensor& gradient) override;
  void gradient_accumulated(int parameter, bool defined) override;
  bool is_reducing() override;

 private:
  // All parameters are checked before each forward; the ones in `reduced` are also hooked.
  BackwardReduction(const std::vector<NamedTensor>& all, const std::vector<NamedTensor>& reduced,
                    ReducerGroup group, BucketLimits limits, const ReducerOptions& options,
                    std::shared_ptr<const int> no_sync_depth);
  template <class Function>
  void reducing(Function&& function);
  void refuse_create_graph() const;
  void begin();
  void contribute(ReducedParameter& parameter);
  void launch_next();
  Work reduce(Bucket& bucket);
  void bypassed_outputs(const ReducedParameter& parameter);
  void finish_bypass();
  void finish();
  void launch_rest();
  Findings exchange_findings();
  void settle(std::size_t bucket, const Findings* findings);
  void clear() noexcept;
  void backward_failed() noexcept;

  ReducerGroup group_;
  const WrappedParameters wrapped_;
  ReducedParameters parameters_;
  FirstBackward first_backward_;
  GradientBuckets buckets_;
  BucketLaunches launches_;
  BypassingGradients bypassing_;
  DividedReduction divided_;
  CommHook hook_;                                    // empty unless the user has registered one
  std::optional<FiniteGradients> finite_gradients_;  // empty unless checked
  std::shared_ptr<const int> no_sync_depth_;
  std::shared_ptr<UnsynchronizedBackward> unsynchronized_;  // made when first needed

  // The backward that runs now.
  bool active_ = false;
  // It bypassed the outputs, and will be reduced at its end.
  bool reduces_at_end_ = false;
  // A model on several devices computes gradients on several threads.
  std::mutex mutex_;
};

}  // namespace lockstep
