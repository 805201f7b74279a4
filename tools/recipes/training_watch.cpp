// SPDX-License-Identifier: BSD-3-Clause
// Counts steps, bytes and seconds.
#include "tools/recipes/training_watch.h"

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

TrainingWatch::TrainingWatch(TrainResult& result, std::int64_t steps_per_epoch,
                             const RecipeTrainer& model, ProcessGroup& group,
                             TrainingObservers observers)
    : result_(result),
      steps_per_epoch_(steps_per_epoch),
      model_(model),
      group_(group),
      observers_(std::move(observers)),
      curve_(steps_per_epoch) {}

void TrainingWatch::begin_epoch() {
  steps_run_ = true;
  if (observers_.records != nullptr) observers_.records->start();
  if (observers_.course != nullptr) observers_.course->begin_epoch();
  moved_before_epoch_ = model_.bytes_moved();
}

void TrainingWatch::step(const StepSummary& step) {
  const std::int64_t batch = result_.global_batch_size;
  const std::int64_t step_of_epoch = (step.samples_of_epoch + batch - 1) / batch;
  curve_.add(step_of_epoch, step.loss, step.samples);
  moved_after_step_ = model_.bytes_moved();
  ++steps_;
  if (observers_.records == nullptr && observers_.course == nullptr && !observers_.on_step) return;
  const StepSeen seen{.epoch = step.epoch + 1,
                      .epochs = result_.epochs,
                      .step_of_epoch = step_of_epoch,
                      .steps_per_epoch = steps_per_epoch_,
                      .loss = step.loss,
                      .learning_rate = step.learning_rate,
                      .samples = step.samples * group_.size()};
  if (observers_.records != nullptr) observers_.records->step(seen);
  if (observers_.on_step) observers_.on_step(seen);
  if (observers_.course != nullptr) observers_.course->step(seen);
}

void TrainingWatch::end_steps() {
  if (!std::exchange(steps_run_, false)) return;
  moved_ += moved_after_step_ - moved_before_epoch_;
  if (observers_.course != nullptr) observers_.course->end_epoch();
}

void TrainingWatch::end_epoch(const EpochSummary& summary) {
  end_steps();
  has_ended_ = summary.epoch + 1 == result_.epochs;
  result_.loss = summary.loss;
  for (const LossPoint& point : curve_.finish(group_)) {
    result_.losses.push_back({static_cast<double>(summary.epoch) + point.epoch, point.loss});
  }
  if (summary.steps == 0) return;  // the rest of a resumed epoch was nothing
  result_.seconds += summary.seconds;
  // Of a whole epoch, where this one was resumed in its middle.
  seconds_.push_back(summary.seconds * static_cast<double>(steps_per_epoch_) /
                     static_cast<double>(summary.steps));
  if (observers_.records == nullptr) return;
  observers_.records->epoch({summary.epoch + 1, (summary.epoch + 1) * steps_per_epoch_,
                             summary.loss, summary.seconds, summary.evaluation});
}

void TrainingWatch::finish(std::int64_t samples) {
  if (steps_ == 0) return;  // all had been done before
  result_.bytes_moved_per_step = static_cast<std::int64_t>(moved_) / steps_;
  result_.seconds_per_epoch = median(seconds_);
  result_.samples_per_second = static_cast<double>(samples) / result_.seconds_per_epoch;
}

}  // namespace lockstep
