// SPDX-License-Identifier: BSD-3-Clause
// Public. What Trainer::fit() takes besides the batches and the loss, and what it tells: summaries
// of steps and epochs, evaluations, callbacks.
#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/data/epoch_sampler.h"

namespace lockstep {

// The results of an evaluation, by names such as "accuracy".
using Metrics = std::map<std::string, double>;

// A function that returns Metrics, or one number, which is then called "evaluation".
class EvaluationFunction {
 public:
  EvaluationFunction() = default;
  template <class F>
  requires(!std::same_as<F, EvaluationFunction> && std::invocable<F&>)
      EvaluationFunction(F function) {
    if constexpr (std::is_convertible_v<std::invoke_result_t<F&>, Metrics>) {
      function_ = std::move(function);
    } else {
      function_ = [function = std::move(function)]() mutable {
        return Metrics{{"evaluation", static_cast<double>(function())}};
      };
    }
  }

  explicit operator bool() const { return static_cast<bool>(function_); }
  Metrics operator()() const { return function_(); }

 private:
  std::function<Metrics()> function_;
};

struct EpochSummary {
  std::int64_t epoch = 0;    // counted from 0
  std::int64_t steps = 0;    // optimizer steps in this epoch
  std::int64_t skipped = 0;  // steps whose gradients overflowed in float16
  // The mean over the samples of all ranks, or over their batches if the numbers of samples are
  // unknown.
  double loss = 0;
  double seconds = 0;  // the time of the slowest rank, without evaluation
  // What evaluate() returned, and the metric of it that decides (TrainerOptions::watch).
  Metrics metrics = {};
  std::optional<double> evaluation = {};
};

struct StepSummary {
  std::int64_t epoch = 0;  // counted from 0
  std::int64_t step = 0;   // optimizer steps over all epochs, including this one
  // The mean over the last batch of this rank, on its device: reading it waits for a GPU.
  at::Tensor loss;
  // Collective: call it on every rank or on none. Returns the mean of `loss` over the samples of
  // all ranks.
  std::function<double()> mean_loss = {};
  double learning_rate = 0;  // the rate of the first parameter group in this step
  // The samples of this rank in the step, and of all ranks in this epoch so far; -1 if unknown.
  std::int64_t samples = 0;
  std::int64_t samples_of_epoch = 0;
};

// Follows fit() on every rank, on the thread that calls it. Derive from it for what several
// programs need; FitOptions has functions for one program. What a function throws ends fit().
class TrainerCallback {
 public:
  TrainerCallback() = default;
  TrainerCallback(const TrainerCallback&) = delete;
  TrainerCallback& operator=(const TrainerCallback&) = delete;
  virtual ~TrainerCallback() = default;

  // As FitOptions::resumed.
  virtual void resumed(std::int64_t /*steps*/) {}
  // As FitOptions::begin_epoch and end_epoch.
  virtual void before_epoch(std::int64_t /*epoch*/) {}
  virtual void after_epoch(const EpochSummary& /*summary*/) {}
  // `step` is the number of the step over all epochs, counted from 1.
  virtual void before_step(std::int64_t /*step*/) {}
  virtual void after_step(const StepSummary& /*summary*/) {}
  virtual void before_evaluation(std::int64_t /*epoch*/) {}
  virtual void after_evaluation(std::int64_t /*epoch*/, const Metrics& /*metrics*/) {}
  // `step` is the number of steps in the checkpoint. After it, the contents have been copied, and a
  // thread writes them.
  virtual void before_checkpoint(std::int64_t /*step*/) {}
  virtual void after_checkpoint(std::int64_t /*step*/) {}
  // fit() ends with this exception; a std::runtime_error stands for one that is no std::exception.
  // Must not throw.
  virtual void on_exception(const std::exception& /*error*/) {}
};

// Functions and callbacks are called on every rank.
struct FitOptions {
  // The sampler that the loader was made with. fit() sets its epoch, and can resume in the middle
  // of an epoch with any number of ranks. Without it, a resumed fit() skips batches of the range,
  // which must not depend on random numbers, and needs the former number of ranks. It must outlive
  // fit().
  EpochSampler* sampler = nullptr;
  // The number of batches of an epoch on each rank. Needed only for a progress bar and for an
  // lr_schedule that is a function, and only if neither the range (DataLoader, or one with size())
  // nor the range together with the sampler (libtorch's loaders, MemoryLoader) tells.
  std::optional<std::int64_t> batches_per_epoch = {};
  // fit() with .resume calls this before the first epoch with the number of steps in the
  // checkpoint; 0 without a checkpoint. Training repeats the later steps of a killed run, so the
  // program should drop its records of them, for example by purge(steps + 1) of a
  // TensorBoardWriter.
  std::function<void(std::int64_t steps)> resumed = {};
  std::function<void(std::int64_t epoch)> begin_epoch = {};
  std::function<void(const StepSummary&)> after_step = {};
  // fit() calls this after each epoch. What decides (TrainerOptions::watch) must be the same on
  // every rank, as what accuracy() and Trainer::validation_loss() return.
  EvaluationFunction evaluate = {};
  // fit() calls this before it saves the checkpoint of the epoch, which includes the changes made
  // here, such as learning rates.
  std::function<void(const EpochSummary&)> end_epoch = {};
  // Called in this order, before the functions above. None may be null.
  std::vector<std::shared_ptr<TrainerCallback>> callbacks = {};
};

}  // namespace lockstep
