// SPDX-License-Identifier: BSD-3-Clause
// Forward and backward of a global batch in microbatches, whose gradients are summed over a fixed
// tree, so that a step has the same bits for any number of ranks or replicas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/tree_sum.h"
#include "lockstep/data/epoch_sampler.h"
#include "lockstep/data/microbatch_plan.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/train/load_balance.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

// Where the gradients of the trained parameters lie in a flat tensor. Behind them are, for each
// parameter, the number of microbatches that gave it a gradient, then the sum of the losses, the
// number of ranks that ask to leave, and with .balance_load the load of each rank.
struct GradientLayout {
  static constexpr std::int64_t kNumbersOfLoad = 3;

  std::vector<at::Tensor> parameters;
  std::vector<std::int64_t> offsets;
  std::int64_t first_count = 0;
  std::int64_t loss = 0;
  std::int64_t measured_ranks = 0;

  std::int64_t leaving() const { return loss + 1; }
  std::int64_t load_of(int rank) const { return loss + 2 + rank * kNumbersOfLoad; }
  std::int64_t elements() const { return loss + 2 + measured_ranks * kNumbersOfLoad; }
};

// Runs the microbatches of this process: one after another, or with replicas several at once.
class MicrobatchStep {
 public:
  // Keeps the references. `model` is null unless the mode is distributed, `replicas` unless it is
  // data_parallel. UsageError if the module cannot be trained in microbatches, or there are fewer
  // of them than ranks or replicas.
  MicrobatchStep(const TrainerOptions& options, ProcessGroup& group,
                 std::shared_ptr<torch::nn::Module> module,
                 std::shared_ptr<DistributedDataParallelBase> model,
                 std::shared_ptr<DataParallelBase> replicas);
  ~MicrobatchStep();

  // The wrapper, if it was made anew; null drops it.
  void set_model(std::shared_ptr<DistributedDataParallelBase> model) { model_ = std::move(model); }
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
  bool is_complete() const { return added_ == planned_; }
  // With .balance_load, it measures waits for batches. A loop over them begins; what was before it
  // does not count.
  void begin_loop();
  // Whether the loop waits for this rank's next batch from now on.
  void set_waiting(bool waits);
  // The optimizer has updated the parameters: abandon() does nothing any more.
  void end_step() { is_open_ = false; }
  // Ends a step without its result, and gives the module the buffers that it had before.
  void abandon();
  // The samples of all ranks in the step, and of this rank.
  std::int64_t samples() const { return samples_; }
  std::int64_t own_samples() const { return own_samples_; }

  // Collective. Each `.grad` becomes the gradient of the loss of all samples, and stays undefined
  // if no microbatch gave one; each buffer becomes what microbatch 0 made of it. Returns the mean
  // loss. The gradients share memory that the next step overwrites. `asks_to_leave`: this rank
  // wants all ranks to leave the loop after this step.
  at::Tensor finish(bool asks_to_leave);
  // Whether a rank asked to leave in the last finish(); the same on every rank.
  bool all_leave() const { return all_leave_; }
  // Collective, between steps. Gives the ranks other shares of the microbatches if the last
  // finish() has shown that they are clearly better; the same on every rank. Then plan_for()
  // returns another plan. Returns a line about it; nullopt if the shares stay.
  std::optional<std::string> change_shares();

 private:
  // What computes microbatches: the module, or a replica of it.
  struct Worker;

  bool is_mean() const { return options_.loss_reduction == LossReduction::mean; }
  // UsageError if other parameters are trained than at the last renew().
  void require_same_parameters() const;
  void update_workers();
  void compute(Worker& worker, const std::function<at::Tensor()>& loss);
  // Adds the gradients of the worker's parameters, and takes them away, to the flat tensor.
  // `loss`: the weighted loss, undefined if the microbatch is empty.
  void add_gradients(const Worker& worker, const at::Tensor& loss, const at::Tensor& to,
                     bool adds) const;
  RankLoad load_of_step(const at::Tensor& partial);
  at::Tensor sum_gradients(bool asks_to_leave);
  void set_gradients(const at::Tensor& sum);
  std::vector<RankLoad> loads_in(const float* counts) const;
  void renew_memory();
  void share_buffers();

  const TrainerOptions& options_;
  ProcessGroup& group_;
  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<DistributedDataParallelBase> model_;
  std::shared_ptr<DataParallelBase> replicas_;
  bool shares_generator_ = false;  // with other threads of this process
  SumTree tree_;
  std::vector<LeafRange> runs_of_ranks_;
  std::vector<LeafRange> runs_of_workers_;  // of this process
  MicrobatchPlan plan_;
  GradientLayout layout_;
  std::vector<at::Tensor> buffers_;  // the module's
  std::vector<at::Tensor> memory_;   // of the partial sums, if there are several ranks
  std::vector<Worker> workers_;
  std::optional<LoadMeter> meter_;      // with .balance_load, if there is something to move
  std::vector<LeafRange> better_runs_;  // from finish() to change_shares(); empty if there are none
  std::vector<RankLoad> loads_;         // what they follow from

  // Of the present step.
  std::int64_t seed_ = 0;
  std::int64_t step_ = 0;
  std::int64_t samples_ = 0;
  std::int64_t own_samples_ = 0;
  std::size_t planned_ = 0;
  std::size_t added_ = 0;
  bool is_open_ = false;  // from begin() to end_step()
  bool all_leave_ = false;
  // With replicas: the microbatches, until finish().
  std::vector<std::function<at::Tensor()>> kept_;
  // Copies of the buffers at the start of the step, and after microbatch 0 if the worker has
  // others.
  std::vector<at::Tensor> first_buffers_;
  std::vector<at::Tensor> buffers_after_0_;
};

}  // namespace lockstep
