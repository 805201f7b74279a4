// SPDX-License-Identifier: BSD-3-Clause
// Forward and backward of the microbatches that this process computes in a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/tree_sum.h"
#include "lockstep/core/error.h"
#include "lockstep/data/microbatch_plan.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/train/gradient_layout.h"
#include "lockstep/train/microbatch_shares.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

// What computes microbatches.
struct ComputingModel {
  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<DistributedDataParallelBase> wrapper;  // null unless the mode is distributed
  std::shared_ptr<DataParallelBase> replicas;            // null unless it is data_parallel
};

// Runs the microbatches one after another in the module, or several at once in its replicas, and
// adds up their gradients. Each begins with the random numbers of its key, and with the buffers
// that the step began with.
class MicrobatchLoop {
 public:
  // Keeps the references. UsageError if the result of a layer of the module would depend on other
  // ranks or threads.
  MicrobatchLoop(const TrainerOptions& options, ProcessGroup& group, const GradientLayout& layout,
                 const MicrobatchShares& shares, ComputingModel model);
  ~MicrobatchLoop();

  void set_wrapper(std::shared_ptr<DistributedDataParallelBase> wrapper) {
    model_.wrapper = std::move(wrapper);
  }
  // Call it between steps if the layout or the shares have changed.
  void renew();

  // Starts a step of `samples` samples of all ranks, of which this process computes the run of the
  // plan. `seed` and `step` key its random numbers. UsageError if other parameters are trained than
  // the layout has.
  void begin(const MicrobatchPlan& plan, std::int64_t seed, std::int64_t step,
             std::int64_t samples);
  // Takes the next microbatch, and computes it unless there are replicas. `loss` must stay usable
  // until partial_sums(). UsageError if it has another number of samples than planned.
  void add(std::function<at::Tensor()> loss, std::int64_t samples);
  // Whether add() has had all microbatches that have samples, and how many these are.
  bool is_complete() const { return added_ == planned_; }
  std::size_t planned() const { return planned_; }
  // The samples of all ranks in the step, and of this process.
  std::int64_t samples() const { return samples_; }
  std::int64_t own_samples() const { return own_samples_; }

  // Computes what is left for the replicas. Returns the partial sums of each of runs(), which stay
  // valid until the next begin().
  std::vector<std::vector<at::Tensor>> partial_sums();
  // The run of the module, or of each replica.
  const std::vector<LeafRange>& runs() const { return runs_; }
  // Collective. The buffers of every rank become those that microbatch 0 left.
  void share_buffers();
  // The step is complete: abandon() does nothing any more.
  void end_step() { is_open_ = false; }
  // Ends a step without its result, and gives the module the buffers that it had before.
  void abandon();

 private:
  // The module or a replica of it.
  struct Worker;

  void update_workers();
  void compute(Worker& worker, const std::function<at::Tensor()>& loss);

  const TrainerOptions& options_;
  ProcessGroup& group_;
  ErrorContext trainer_;
  const GradientLayout& layout_;
  const MicrobatchShares& shares_;
  ComputingModel model_;
  bool shares_generator_;            // with other threads of this process
  std::vector<at::Tensor> buffers_;  // of the module
  std::vector<Worker> workers_;
  std::vector<LeafRange> runs_;  // of the workers

  // Of the present step.
  MicrobatchPlan plan_;
  std::int64_t seed_ = 0;
  std::int64_t step_ = 0;
  std::int64_t samples_ = 0;
  std::int64_t own_samples_ = 0;
  std::size_t planned_ = 0;
  std::size_t added_ = 0;
  bool is_open_ = false;  // from begin() to end_step()
  // With replicas: the microbatches, until partial_sums().
  std::vector<std::function<at::Tensor()>> kept_;
  // Copies of the buffers at the start of the step, and after microbatch 0 if the worker has
  // others.
  std::vector<at::Tensor> first_buffers_;
  std::vector<at::Tensor> buffers_after_0_;
};

}  // namespace lockstep
