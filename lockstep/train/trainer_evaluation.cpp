// SPDX-License-Identifier: BSD-3-Clause
// Puts averages into the module while it is evaluated.
#include "lockstep/train/trainer_evaluation.h"

#include <fmt/format.h>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/core/trace_span.h"
#include "lockstep/optim/averaged_model.h"
#include "lockstep/train/option_checks.h"
#include "lockstep/train/same_training.h"
#include "lockstep/train/share_buffers.h"
#include "lockstep/train/watched_metric.h"

namespace lockstep {

Metrics TrainerEvaluation::evaluate(const FitOptions& fit, ProcessGroup& group) {
  const TracedSpan span("evaluation");
  share_buffers(step_.module(), group, options_.evaluation_buffers);
  WeightAverage* const average = step_.average_to_evaluate();
  if (average == nullptr) return fit.evaluate();
  const auto averaged = average->swap_in();
  // The averages of a rank have the buffers of its last step.
  share_buffers(step_.module(), group, options_.evaluation_buffers);
  return fit.evaluate();
}

std::optional<double> TrainerEvaluation::watched(const Metrics& metrics,
                                                 ProcessGroup& group) const {
  const auto found = watched_metric(metrics, options_, trainer_on(group));
  if (found == metrics.end()) return {};
  if (evaluations_decide(options_)) {
    check_same_number(group, found->second, "the number that evaluate() returned",
                      "return the same on every rank, as accuracy() does, since it decides when "
                      "training ends and which checkpoints stay");
  }
  return found->second;
}

void TrainerEvaluation::note(const std::optional<double>& evaluation, bool keeps_best) {
  if (!evaluation) return;
  const bool is_best = progress_.note_evaluation(*evaluation, options_.watch.lower_is_better);
  if (is_best && options_.restore_best && keeps_best) best_weights_ = step_.weights();
}

bool TrainerEvaluation::has_no_patience_left() const {
  return options_.patience > 0 && progress_.epochs_since_best >= options_.patience;
}

void TrainerEvaluation::log_what_decides(const EpochSummary& first,
                                         const ProcessGroup& group) const {
  if (!first.evaluation || !evaluations_decide(options_)) return;
  const auto watched = watched_metric(first.metrics, options_, trainer_on(group));
  options_.log(fmt::format("{} decides", watch_text(options_.watch, watched->first)));
}

void TrainerEvaluation::restore_best(ProcessGroup& group) {
  if (best_weights_.empty()) return;
  // Another rank's callback may still use the only copy of the weights.
  if (options_.distributed.one_copy_per_host) group.barrier().wait();
  load_state_dict(step_.module(), best_weights_);
  options_.log(fmt::format("the weights are those of epoch {}, the best",
                           progress_.best_epoch.value_or(0) + 1));
}

}  // namespace lockstep
