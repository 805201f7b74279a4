// SPDX-License-Identifier: BSD-3-Clause
// Loads checkpoints, and brings the ranks of a new generation to one state.
#include "lockstep/train/trainer_state.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/core/error.h"
#include "lockstep/optim/lr_schedule.h"
#include "lockstep/train/option_checks.h"
#include "lockstep/train/rank_alignment.h"
#include "lockstep/train/watched_metric.h"

namespace lockstep {

CheckpointContents TrainerState::contents() const {
  CheckpointContents contents = step_.contents();
  if (!options_.checkpoints) return contents;
  const auto& tensors = options_.checkpoints->tensors;
  contents.tensors.insert(contents.tensors.end(), tensors.begin(), tensors.end());
  return contents;
}

std::unique_ptr<TrainerSaves> TrainerState::make_saves(ProcessGroup& group) const {
  return std::make_unique<TrainerSaves>(*options_.checkpoints, contents(),
                                        watch_text(options_.watch), group, options_.log);
}

bool TrainerState::load(TrainerSaves& saves, EpochSampler* sampler) {
  step_.rates().before_load();
  const auto loaded = saves.load(sampler);
  if (!loaded) return false;
  progress_ = *loaded;
  // What was best by another metric says nothing.
  if (!progress_.watched.empty() && progress_.watched != watch_text(options_.watch)) {
    options_.log(
        fmt::format("the best evaluation so far is forgotten: it was of {}, and now {} "
                    "decides",
                    progress_.watched, watch_text(options_.watch)));
    progress_.forget_best();
    step_.rates().forget_plateau();
  }
  return true;
}

void TrainerState::begin_rates(const RunLength& run, bool resumed) {
  const auto planned = run.schedule(resumed);
  std::vector<std::string> lines;
  try {
    if (planned) {
      planned->check(step_.optimizer().param_groups().size());
      run.require_rates(*planned, resumed);
    }
    lines = step_.rates().begin(planned, progress_.steps, resumed);
  } catch (const Error&) {
    rethrow_within(trainer_on(run.group));
  }
  for (const std::string& line : lines) options_.log(line);
}

std::string TrainerState::take(const RunLength& run, EpochSampler& sampler, bool has_state,
                               MicrobatchStep* microbatches, ProcessGroup& group) {
  const auto recovered = shards_.recover(group, has_state);
  if (recovered.steps.value_or(0) > progress_.steps) {
    step_.finish_update(/*stepped=*/true, progress_.steps);
    ++progress_.sums.steps;
    if (microbatches != nullptr) microbatches->end_step();
  }
  step_.abandon();
  if (microbatches != nullptr) microbatches->abandon();
  progress_.forget_unfinished_step();
  if (recovered.is_lost) {
    return go_back_to_checkpoint(recovered.lost_ranks, run, sampler, group);
  }
  step_.rates().settle();
  step_.rates().note_numbers();
  const Alignment made = align_ranks(progress_, recovered.has_state, contents(), sampler, group);
  if (std::ranges::find(made.receivers, group.rank()) != made.receivers.end()) {
    begin_rates(run, /*resumed=*/true);
  }
  return fmt::format(
      "{}{}{}", progress_.steps,
      recovered.steps ? ", with the optimizer's state from the memory that they shared" : "",
      made.text());
}

// `lost`: the ranks whose shares of the optimizer's state are lost.
std::string TrainerState::go_back_to_checkpoint(const std::vector<int>& lost, const RunLength& run,
                                                EpochSampler& sampler, ProcessGroup& group) {
  const std::int64_t completed = progress_.steps;
  const std::string cause = fmt::format("rank{} {} had a share of the optimizer's state",
                                        lost.size() == 1 ? "" : "s", fmt::join(lost, ", "));
  const std::unique_ptr<TrainerSaves> saves = make_saves(group);
  if (!load(*saves, &sampler)) {
    throw Error(trainer_on(group), cause + ", and the folder has no checkpoint",
                "keep the checkpoints of a job until it has ended");
  }
  begin_rates(run, /*resumed=*/true);
  return fmt::format("{}, from the checkpoint of step {}: {}", completed, progress_.steps, cause);
}

}  // namespace lockstep
