// SPDX-License-Identifier: BSD-3-Clause
// Translates a trainer's progress into a checkpoint's position and notes.
#include "lockstep/train/trainer_saves.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/core/number.h"

namespace lockstep {
namespace {

using Notes = std::map<std::string, std::string>;

constexpr const char* kRanks = "ranks";
constexpr const char* kBatches = "batches";
constexpr const char* kBest = "best";
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

TrainerSaves::TrainerSaves(const TrainerCheckpointOptions& options, CheckpointContents contents,
                           ProcessGroup& group, std::function<void(const std::string&)> log)
    : contents_(std::move(contents)),
      group_(group),
      path_(options.folder.string()),
      folder_(
          options.folder, group,
          {.keep_last = options.keep_last, .keep_best = options.keep_best, .log = std::move(log)}) {
}

void TrainerSaves::require_new_folder() const {
  if (folder_.is_new()) return;
  throw UsageError(fmt::format(
      "{} has checkpoints of an earlier run; resume it (.resume, or --resume of lockstep), or "
      "choose another folder",
      path_));
}

std::optional<TrainerProgress> TrainerSaves::load(EpochSampler* sampler) {
  TrainerProgress progress;
  const auto position = folder_.load(
      contents_, [&](const CheckpointPosition& found) { progress = progress_at(found, sampler); });
  return position ? std::optional(progress) : std::nullopt;
}

TrainerProgress TrainerSaves::progress_at(const CheckpointPosition& position,
                                          EpochSampler* sampler) const {
  TrainerProgress progress{.steps = position.step,
                           .epoch = position.data.epoch,
                           .batches = note(position.notes, kBatches),
                           .samples = position.data.samples_consumed,
                           .best = find_note<double>(position.notes, kBest),
                           .epochs_since_best = note(position.notes, kEpochsSinceBest)};
  if (sampler != nullptr) {
    sampler->resume(position.data);
    progress.batches = 0;  // the sampler passes over them
    return progress;
  }
  const std::int64_t ranks = note(position.notes, kRanks);
  if (progress.batches > 0 && ranks != group_.size()) {
    throw CheckpointError(fmt::format(
        "the checkpoint of step {} was saved in the middle of an epoch by {} rank{}, and there {} "
        "{} now; give fit() the sampler, which then goes on at the right sample",
        position.step, ranks, ranks == 1 ? "" : "s", group_.size() == 1 ? "is" : "are",
        group_.size()));
  }
  return progress;
}

void TrainerSaves::save(const TrainerProgress& progress, std::optional<double> score,
                        const EpochSampler* sampler) {
  Notes notes{{kRanks, std::to_string(group_.size())},
              {kBatches, std::to_string(progress.batches)},
              {kEpochsSinceBest, std::to_string(progress.epochs_since_best)}};
  if (progress.best && std::isfinite(*progress.best))
    notes[kBest] = fmt::format("{}", *progress.best);
  DataCursor cursor{.samples_consumed = progress.samples, .samples = progress.samples};
  if (sampler != nullptr) {
    cursor = sampler->cursor_after(progress.samples);
    cursor.samples_consumed = std::min(progress.samples, cursor.samples);  // without padding
  }
  cursor.epoch = progress.epoch;
  folder_.save(contents_,
               {.step = progress.steps, .data = cursor, .score = score, .notes = std::move(notes)});
}

}  // namespace lockstep
