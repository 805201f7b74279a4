// SPDX-License-Identifier: BSD-3-Clause
// Counts steps, bytes and seconds, and averages the losses of sections over the ranks.
#include "tools/recipes/run_observer.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "lockstep/train/over_ranks.h"

namespace lockstep {
namespace {

constexpr std::int64_t kMostSections = 20;

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

void LossCurve::add(std::int64_t step, const at::Tensor& loss, std::int64_t samples) {
  const std::int64_t sections = std::min(steps_per_epoch_, kMostSections);
  // The section whose first step is at steps * number / sections, rounded down, counted from 0.
  const std::int64_t number = (step * sections - 1) / steps_per_epoch_;
  if (sections_.empty() || sections_.back().number != number) {
    sections_.push_back({number, at::zeros({}, loss.options().dtype(at::kDouble)), 0});
  }
  sections_.back().losses.add_(loss.reshape({}), samples);
  sections_.back().samples += static_cast<double>(samples);
}

std::vector<LossPoint> LossCurve::finish(ProcessGroup* group) {
  const std::vector<Section> sections = std::exchange(sections_, {});
  std::vector<at::Tensor> losses;
  std::vector<double> samples;
  for (const Section& section : sections) {
    losses.push_back(section.losses);
    samples.push_back(section.samples);
  }
  // A rank that has just joined an elastic job has had no step yet.
  if (group == nullptr && sections.empty()) return {};
  const at::Tensor sums = at::stack(losses).cpu();
  const at::Tensor weights = at::tensor(samples, at::kDouble);
  const at::Tensor means = group ? mean_over_ranks(sums, weights, *group) : sums / weights;
  std::vector<LossPoint> points;
  const std::int64_t count = std::min(steps_per_epoch_, kMostSections);
  for (std::size_t i = 0; i < sections.size(); ++i) {
    const std::int64_t last_step = steps_per_epoch_ * (sections[i].number + 1) / count;
    points.push_back({static_cast<double>(last_step) / static_cast<double>(steps_per_epoch_),
                      means[static_cast<std::int64_t>(i)].item<double>()});
  }
  return points;
}

RunObserver::RunObserver(TrainResult& result, std::int64_t steps_per_epoch,
                         const RecipeTrainer& model, RunSinks sinks)
    : result_(result),
      run_{.epochs = result.epochs,
           .per_epoch = steps_per_epoch,
           .global_batch_size = result.global_batch_size,
           .ranks = model.group().size()},
      model_(model),
      sinks_(std::move(sinks)),
      curve_(steps_per_epoch) {}

void RunObserver::begin_epoch() {
  steps_run_ = true;
  if (sinks_.metrics != nullptr) sinks_.metrics->start();
  if (sinks_.course != nullptr) sinks_.course->begin_epoch();
  moved_before_epoch_ = model_.bytes_moved();
  samples_of_epoch_ = 0;
}

void RunObserver::step(const StepSummary& step) {
  // With microbatches, the loss is of all ranks.
  const std::int64_t of_all =
      std::min(step.samples_of_epoch - samples_of_epoch_, run_.global_batch_size);
  samples_of_epoch_ = step.samples_of_epoch;
  curve_.add(run_.in_epoch(step), step.loss, result_.microbatches > 0 ? of_all : step.samples);
  moved_after_step_ = model_.bytes_moved();
  ++steps_;
  if (sinks_.metrics != nullptr) sinks_.metrics->step(run_, step);
  if (sinks_.on_step) sinks_.on_step(run_, step);
  if (sinks_.course != nullptr) sinks_.course->step(run_, step);
}

void RunObserver::end_steps() {
  if (!std::exchange(steps_run_, false)) return;
  moved_ += moved_after_step_ - moved_before_epoch_;
  if (sinks_.course != nullptr) sinks_.course->end_epoch();
}

void RunObserver::end_epoch(const EpochSummary& summary) {
  end_steps();
  has_ended_ = summary.epoch + 1 == run_.epochs;
  result_.loss = summary.loss;
  for (const LossPoint& point :
       curve_.finish(result_.microbatches > 0 ? nullptr : &model_.group())) {
    result_.losses.push_back({static_cast<double>(summary.epoch) + point.epoch, point.loss});
  }
  if (summary.steps == 0) return;  // nothing was left of a resumed epoch
  result_.seconds += summary.seconds;
  // Extrapolates an epoch that was resumed in its middle to a whole one.
  seconds_.push_back(summary.seconds * static_cast<double>(run_.per_epoch) /
                     static_cast<double>(summary.steps));
  if (sinks_.metrics != nullptr) sinks_.metrics->epoch(run_, summary);
}

void RunObserver::finish(std::int64_t samples) {
  if (steps_ == 0) return;  // the checkpoint included all epochs
  result_.bytes_moved_per_step = static_cast<std::int64_t>(moved_) / steps_;
  result_.seconds_per_epoch = median(seconds_);
  result_.samples_per_second = static_cast<double>(samples) / result_.seconds_per_epoch;
}

}  // namespace lockstep
