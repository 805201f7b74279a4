// SPDX-License-Identifier: BSD-3-Clause
// The evaluations of a Trainer: which weights they are of, which metric decides, and the weights of
// the best one.
#pragma once

#include <optional>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/named_tensor.h"
#include "lockstep/train/fit_options.h"
#include "lockstep/train/trainer_options.h"
#include "lockstep/train/trainer_progress.h"
#include "lockstep/train/trainer_step.h"

namespace lockstep {

class TrainerEvaluation {
 public:
  // Keeps references.
  TrainerEvaluation(const TrainerOptions& options, TrainerStep& step, TrainerProgress& progress)
      : options_(options), step_(step), progress_(progress) {}

  // A fit() begins, whose best weights are its own.
  void begin() { best_weights_.clear(); }
  // Collective. Calls fit.evaluate with the weights to evaluate in the module.
  Metrics evaluate(const FitOptions& fit, ProcessGroup& group);
  // Collective if it decides. Returns the metric that decides; nullopt if none does. UsageError if
  // it differs between ranks.
  std::optional<double> watched(const Metrics& metrics, ProcessGroup& group) const;
  // An epoch has ended, with this evaluation if it had one. `keeps_best`: keep the weights if it is
  // the best one, since there are no checkpoints.
  void note(const std::optional<double>& evaluation, bool keeps_best);
  bool has_no_patience_left() const;
  // Says which metric decides, if one does.
  void log_what_decides(const EpochSummary& first, const ProcessGroup& group) const;
  // Collective. Gives the module the weights that note() has kept, if any.
  void restore_best(ProcessGroup& group);

 private:
  const TrainerOptions& options_;
  TrainerStep& step_;
  TrainerProgress& progress_;
  std::vector<NamedTensor> best_weights_;
};

}  // namespace lockstep
