// SPDX-License-Identifier: BSD-3-Clause
// Sums up losses without waiting for the device, and translates the progress into a checkpoint's
// position and notes.
#include "lockstep/train/trainer_progress.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/checkpoint/checkpoint_store.h"
#include "lockstep/comm/objects.h"
#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/core/number.h"
#include "lockstep/train/option_checks.h"
#include "lockstep/train/over_ranks.h"

namespace lockstep {
namespace {

// The ranks exchange these at the end of an epoch. A callback may have changed the rate since the
// ranks compared it when training began.
struct EndOfRank {
  double seconds;
  double learning_rate;
};

using Notes = std::map<std::string, std::string>;

constexpr const char* kRanks = "ranks";
constexpr const char* kBatches = "batches";
constexpr const char* kBest = "best";
constexpr const char* kBestEpoch = "best_epoch";
constexpr const char* kBestStep = "best_step";
constexpr const char* kWatched = "watched";
constexpr const char* kEpochsSinceBest = "epochs_since_best";

template <class Number>
std::optional<Number> find_note(const Notes& notes, const char* name) {
  const auto found = notes.find(name);
  if (found == notes.end()) return {};
  constexpr Range<Number> kAny{std::numeric_limits<Number>::lowest(),
                               std::numeric_limits<Number>::max()};
  const auto number = parse_number(found->second, kAny);
  if (!number) {
    throw CheckpointError(
        fmt::format("the checkpoint's note {} is {}, which is not a number", name, found->second));
  }
  return number;
}

std::int64_t note(const Notes& notes, const char* name) {
  const auto number = find_note<std::int64_t>(notes, name);
  if (number) return *number;
  throw CheckpointError(
      fmt::format("the checkpoint has no note of {}: a Trainer did not save it", name));
}

}  // namespace

bool TrainerProgress::note_evaluation(double evaluation, bool lower_is_better) {
  const auto beats = [&](double one, double other) {
    return lower_is_better ? one < other : one > other;
  };
  const bool is_better = !std::isnan(evaluation) && (!best || beats(evaluation, *best));
  epochs_since_best = is_better ? 0 : epochs_since_best + 1;
  if (!is_better) return false;
  best = evaluation;
  best_epoch = epoch;
  best_step = steps;
  return true;
}

void TrainerProgress::forget_best() {
  best.reset();
  best_epoch.reset();
  best_step.reset();
  epochs_since_best = 0;
}

std::string TrainerProgress::end_text(const TrainerOptions& options, bool has_trained) const {
  std::string text;
  if (epoch < options.epochs) {
    text = fmt::format("early stop after epoch {}: ", epoch);
    text += best ? fmt::format("best {:.4f}", *best) : "no evaluation was a number";
    if (best_epoch) text += fmt::format(" in epoch {}", *best_epoch + 1);
    if (best_step && options.checkpoints && options.checkpoints->keep_best > 0) {
      const auto path = options.checkpoints->folder / checkpoint_name(*best_step);
      text += fmt::format(" ({})", path.string());
    }
  } else if (!has_trained) {
    text = fmt::format("the checkpoint includes epoch {0}/{0}", options.epochs);
  }
  return text.empty() || has_trained ? text : "nothing is left to train: " + text;
}

void TrainerProgress::forget_unfinished_step() {
  if (before_step.steps != steps) return;
  batches = before_step.batches;
  samples = before_step.samples;
  sums.losses = before_step.losses;
  sums.weights = before_step.weights;
}

CheckpointPosition position_of(const TrainerProgress& progress, const EpochSampler* sampler,
                               const ProcessGroup& group) {
  Notes notes{{kRanks, std::to_string(group.size())},
              {kBatches, std::to_string(progress.batches)},
              {kEpochsSinceBest, std::to_string(progress.epochs_since_best)},
              {kWatched, progress.watched}};
  if (progress.best && std::isfinite(*progress.best))
    notes[kBest] = fmt::format("{}", *progress.best);
  if (progress.best_epoch) notes[kBestEpoch] = std::to_string(*progress.best_epoch);
  if (progress.best_step) notes[kBestStep] = std::to_string(*progress.best_step);
  DataCursor cursor{.samples_consumed = progress.samples, .samples = progress.samples};
  if (sampler != nullptr) {
    cursor = sampler->cursor_after(progress.samples);
    cursor.samples_consumed = std::min(progress.samples, cursor.samples);  // without padding
  }
  cursor.epoch = progress.epoch;
  return {.step = progress.steps, .data = cursor, .score = {}, .notes = std::move(notes)};
}

TrainerProgress progress_at(const CheckpointPosition& position, EpochSampler* sampler,
                            const ProcessGroup& group) {
  TrainerProgress progress{.steps = position.step,
                           .epoch = position.data.epoch,
                           .batches = note(position.notes, kBatches),
                           .samples = position.data.samples_consumed,
                           .best = find_note<double>(position.notes, kBest),
                           .best_epoch = find_note<std::int64_t>(position.notes, kBestEpoch),
                           .best_step = find_note<std::int64_t>(position.notes, kBestStep),
                           .epochs_since_best = note(position.notes, kEpochsSinceBest)};
  if (const auto watched = position.notes.find(kWatched); watched != position.notes.end()) {
    progress.watched = watched->second;
  }
  if (sampler != nullptr) {
    sampler->resume(position.data);
    progress.batches = 0;  // the sampler skips them
    return progress;
  }
  const std::int64_t ranks = note(position.notes, kRanks);
  if (progress.batches > 0 && ranks != group.size()) {
    throw CheckpointError(ErrorDetails{
        .cause = fmt::format("the checkpoint of step {} was saved in the middle of an epoch by {} "
                             "rank{}, and there {} {} now",
                             position.step, ranks, ranks == 1 ? "" : "s",
                             group.size() == 1 ? "is" : "are", group.size()),
        .remedy = "give fit() the sampler, which then resumes at the right sample"});
  }
  return progress;
}

TrainerEpoch::TrainerEpoch(TrainerProgress& progress, const TrainerOptions& options,
                           const EpochSampler* sampler, ProcessGroup& group)
    : progress_(progress), options_(options), sampler_(sampler), group_(group) {
  if (!progress.sums.start) progress.sums.start = std::chrono::steady_clock::now();
}

void TrainerEpoch::count_batch(std::int64_t samples, std::int64_t of_all_ranks) {
  ++batches_;
  ++progress_.batches;
  if (samples < 0) samples_of_step_ = -1;
  if (samples_of_step_ < 0) return;
  samples_of_step_ += samples;
  progress_.samples += of_all_ranks;
  if (batches_ == 1) samples_of_batch_ = of_all_ranks;
}

void TrainerEpoch::add_loss(const at::Tensor& loss, std::int64_t samples) {
  const auto weight = static_cast<double>(samples >= 0 ? samples : 1);
  // A tensor of its own: the loss belongs to the user.
  EpochSums& sums = progress_.sums;
  const at::TensorOptions place = loss.options().dtype(at::kDouble);
  sums.losses = sums.losses.defined() ? sums.losses.to(place) : at::zeros({}, place);
  sums.losses = sums.losses.add(loss.reshape({}), weight);  // before_step has the former tensor
  sums.weights += weight;
}

StepSummary TrainerEpoch::count_step(bool skipped) {
  ++progress_.sums.steps;
  if (skipped) ++progress_.sums.skipped;
  if (group_.rank() == 0) reports_.note(progress_.steps);
  StepSummary step{.epoch = progress_.epoch,
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
  return fmt::format("epoch {}/{}", progress_.epoch + 1, options_.epochs);
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
  const EpochSums& sums = progress_.sums;
  EpochSummary summary{.epoch = progress_.epoch, .steps = sums.steps, .skipped = sums.skipped};
  const at::Tensor sum = sums.losses.defined()
                             ? sums.losses.cpu().view({1})
                             : at::zeros({1}, at::kDouble);  // waits for pending work on a GPU
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - *sums.start;
  if (options_.microbatches > 0) {
    // Every rank has the losses of all.
    summary.loss = sum.item<double>() / sums.weights;
  } else {
    summary.loss =
        mean_over_ranks(sum, at::full({1}, sums.weights, at::kDouble), group_).item<double>();
  }
  const auto ends = all_gather_object(EndOfRank{time.count(), learning_rate}, group_);
  for (std::size_t rank = 1; rank < ends.size(); ++rank) {
    if (ends[rank].learning_rate == ends[0].learning_rate) continue;
    throw UsageError(trainer_on(group_),
                     fmt::format("{} ends with the learning rate {} on rank 0 and {} on rank {}",
                                 label(), ends[0].learning_rate, ends[rank].learning_rate, rank),
                     "change it alike on every rank");
  }
  summary.seconds = std::ranges::max(ends, {}, &EndOfRank::seconds).seconds;
  return summary;
}

// Returns the number of samples in a whole epoch. Needs a sampler.
std::int64_t TrainerEpoch::samples_of_all_ranks() const {
  if (options_.microbatches > 0) return sampler_->cursor_after(0).samples;  // without padding
  return static_cast<std::int64_t>(sampler_->size()) * group_.size();
}

TrainerSaves::TrainerSaves(const TrainerCheckpointOptions& options, CheckpointContents contents,
                           std::string watched, ProcessGroup& group,
                           std::function<void(const std::string&)> log)
    : contents_(std::move(contents)),
      group_(group),
      path_(options.folder.string()),
      folder_(options.folder, group,
              {.keep_last = options.keep_last,
               .keep_best = options.keep_best,
               .counts_score =
                   [watched = std::move(watched)](const Notes& notes) {
                     const auto found = notes.find(kWatched);
                     return found == notes.end() || found->second == watched;
                   },
               .log = std::move(log)}) {}

void TrainerSaves::require_new_folder() const {
  if (folder_.can_save()) return;
  throw UsageError(trainer_on(group_),
                   fmt::format("the folder {} of rank 0 has checkpoints of an earlier run", path_),
                   "resume that run, or choose another folder");
}

std::optional<TrainerProgress> TrainerSaves::load(EpochSampler* sampler) {
  TrainerProgress progress;
  const auto position = folder_.load(contents_, [&](const CheckpointPosition& found) {
    progress = progress_at(found, sampler, group_);
  });
  return position ? std::optional(progress) : std::nullopt;
}

bool TrainerSaves::load_best() {
  return folder_.load_best(contents_.module, contents_.tensors).has_value();
}

void TrainerSaves::save(const TrainerProgress& progress, std::optional<double> score,
                        const EpochSampler* sampler) {
  CheckpointPosition position = position_of(progress, sampler, group_);
  position.score = score;
  folder_.save(contents_, position);
}

}  // namespace lockstep
