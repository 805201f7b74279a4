// SPDX-License-Identifier: BSD-3-Clause
// Counts batches, samples and steps, and sums up losses without waiting for the device.
#include "lockstep/train/trainer_epoch.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/comm/objects.h"
#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/train/over_ranks.h"

namespace lockstep {
namespace {

// What the ranks tell each other at the end of an epoch. The rate may have changed since training
// began, when they compared it.
struct EndOfRank {
  double seconds;
  double learning_rate;
};

}  // namespace

TrainerEpoch::TrainerEpoch(TrainerProgress& progress, const TrainerOptions& options,
                           const EpochSampler* sampler, ProcessGroup& group)
    : progress_(progress), options_(options), sampler_(sampler), group_(group) {
  summary_.epoch = progress.epoch;
}

void TrainerEpoch::count_batch(std::int64_t samples) {
  ++batches_;
  ++progress_.batches;
  if (samples < 0) samples_of_step_ = -1;
  if (samples_of_step_ < 0) return;
  const std::int64_t of_all_ranks = samples * group_.size();
  samples_of_step_ += samples;
  progress_.samples += of_all_ranks;
  if (batches_ == 1) samples_of_batch_ = of_all_ranks;
}

void TrainerEpoch::add_loss(const at::Tensor& loss, std::int64_t samples) {
  const auto weight = static_cast<double>(samples >= 0 ? samples : 1);
  // A copy: the loss is the user's.
  if (!losses_.defined()) losses_ = at::zeros({}, loss.options().dtype(at::kDouble));
  losses_.add_(loss.reshape({}), weight);
  weights_ += weight;
}

StepSummary TrainerEpoch::count_step(bool skipped) {
  ++summary_.steps;
  if (skipped) ++summary_.skipped;
  StepSummary step{.epoch = summary_.epoch,
                   .step = progress_.steps,
                   .loss = {},
                   .samples = samples_of_step_,
                   .samples_of_epoch = samples_of_step_ < 0 ? -1 : progress_.samples};
  if (samples_of_step_ > 0) samples_of_step_ = 0;
  return step;
}

bool TrainerEpoch::has_all_samples() const {
  return sampler_ != nullptr && progress_.samples >= samples_of_all_ranks();
}

std::string TrainerEpoch::label() const {
  return fmt::format("epoch {}/{}", summary_.epoch + 1, options_.epochs);
}

std::string TrainerEpoch::where() const {
  const char* const what = options_.accumulation_steps == 1 ? "step" : "batch";
  if (sampler_ == nullptr || samples_of_batch_ <= 0) {
    return fmt::format("{}, {} {}", label(), what, progress_.batches);
  }
  const auto batches_in = [&](std::int64_t samples) {
    return (samples + samples_of_batch_ - 1) / samples_of_batch_;
  };
  return fmt::format("{}, {} {}/{}", label(), what, batches_in(progress_.samples),
                     batches_in(samples_of_all_ranks()));
}

EpochSummary TrainerEpoch::finish(double learning_rate) {
  const CallScope scope(CallOrigin::trainer);
  const at::Tensor sum = losses_.defined()
                             ? losses_.cpu().view({1})
                             : at::zeros({1}, at::kDouble);  // waits for pending work on a GPU
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start_;
  summary_.loss = mean_over_ranks(sum, at::full({1}, weights_, at::kDouble), group_).item<double>();
  const auto ends = all_gather_object(EndOfRank{time.count(), learning_rate}, group_);
  for (std::size_t rank = 1; rank < ends.size(); ++rank) {
    if (ends[rank].learning_rate == ends[0].learning_rate) continue;
    throw UsageError(fmt::format(
        "[Trainer] rank {} of {}: {} ends with the learning rate {} on rank 0 and {} on rank {}; "
        "change it alike on every rank",
        group_.rank(), group_.size(), label(), ends[0].learning_rate, ends[rank].learning_rate,
        rank));
  }
  summary_.seconds = std::ranges::max(ends, {}, &EndOfRank::seconds).seconds;
  return summary_;
}

// In an epoch. Needs a sampler.
std::int64_t TrainerEpoch::samples_of_all_ranks() const {
  return static_cast<std::int64_t>(sampler_->size()) * group_.size();
}

}  // namespace lockstep
