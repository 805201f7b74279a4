// SPDX-License-Identifier: BSD-3-Clause
// Forward and backward of a global batch in microbatches, whose gradients are summed over a fixed
// tree, so that a step has the same bits for any number of ranks or replicas.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/epoch_sampler.h"
#include "lockstep/data/microbatch_plan.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/train/gradient_layout.h"
#include "lockstep/train/microbatch_loop.h"
#include "lockstep/train/microbatch_shares.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

// One step after another: this rank's microbatches (microbatch_loop.h), the sum over all ranks, and
// the ranks' shares of the next steps (microbatch_shares.h).
class MicrobatchStep {
 public:
  // Keeps the references. `model` is null unless the mode is distributed, `replicas` unless it is
  // data_parallel. UsageError if the module cannot be trained in microbatches, or there are fewer
  // of them than ranks or replicas.
  MicrobatchStep(const TrainerOptions& options, ProcessGroup& group,
                 std::shared_ptr<torch::nn::Module> module,
                 std::shared_ptr<DistributedDataParallelBase> model,
                 std::shared_ptr<DataParallelBase> replicas);

  // The wrapper, if it was made anew; null drops it.
  void set_model(std::shared_ptr<DistributedDataParallelBase> model) {
    loop_.set_wrapper(std::move(model));
  }
  // Returns this rank's plan for the microbatches of the next steps, which have the size of the
  // loader's batches. UsageError without a sampler, or if the size is unknown.
  const MicrobatchPlan& plan_for(const EpochSampler* sampler, std::optional<std::int64_t> size);
  // Collective. Call it before an epoch: parameters may have been frozen or unfrozen since the last
  // one, alike on every rank.
  // UsageError if the trained parameters differ in type or device.
  void renew();

  // Starts a step. `seed` and `step` key its random numbers; `samples` is the number of samples of
  // all ranks.
  void begin(std::int64_t seed, std::int64_t step, std::int64_t samples);
  // Takes this rank's next microbatch, and computes it unless there are replicas. `loss` returns
  // its loss, reduced as .loss_reduction says, and must stay usable until finish(). UsageError if
  // it has another number of samples than planned.
  void add(std::function<at::Tensor()> loss, std::int64_t samples);
  // Whether add() has had all microbatches of this rank that have samples.
  bool is_complete() const { return loop_.is_complete(); }
  // With .balance_load, it measures waits for batches. A loop over them begins; what was before it
  // does not count.
  void begin_loop() { shares_.forget_step(); }
  // Whether the loop waits for this rank's next batch from now on.
  void set_waiting(bool waits);
  // The optimizer has updated the parameters: abandon() does nothing any more.
  void end_step() { loop_.end_step(); }
  // Ends a step without its result, and gives the module the buffers that it had before.
  void abandon();
  // The samples of all ranks in the step, and of this rank.
  std::int64_t samples() const { return loop_.samples(); }
  std::int64_t own_samples() const { return loop_.own_samples(); }

  // Collective. Each `.grad` becomes the gradient of the loss of all samples, and stays undefined
  // if no microbatch gave one; each buffer becomes what microbatch 0 made of it. Returns the mean
  // loss. The gradients share memory that the next step overwrites. With .check_finite,
  // NonFiniteGradient names parameters and ranks, on every rank. `asks_to_leave`: this rank
  // wants all ranks to leave the loop after this step.
  at::Tensor finish(bool asks_to_leave);
  // Whether a rank asked to leave in the last finish(); the same on every rank.
  bool all_leave() const { return all_leave_; }
  // Collective, between steps. Gives the ranks other shares of the microbatches if the last
  // finish() has shown that they are clearly better; the same on every rank. Then plan_for()
  // returns another plan. Returns a line about it; nullopt if the shares stay.
  std::optional<std::string> change_shares();

 private:
  bool is_mean() const { return options_.loss_reduction == LossReduction::mean; }
  // For each run of this rank's microbatches or replicas, the largest nodes of the tree in it.
  using Partials = std::vector<std::vector<at::Tensor>>;
  at::Tensor sum_gradients(const Partials& partials, bool asks_to_leave);
  NotFinite not_finite_in(const Partials& partials) const;
  void require_finite(const at::Tensor& sum, const NotFinite& own);

  const TrainerOptions& options_;
  ProcessGroup& group_;
  std::shared_ptr<torch::nn::Module> module_;
  GradientLayout layout_;
  MicrobatchShares shares_;
  MicrobatchLoop loop_;  // has references to both
  MicrobatchPlan plan_;
  bool all_leave_ = false;
};

}  // namespace lockstep
