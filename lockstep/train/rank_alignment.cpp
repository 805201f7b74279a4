// SPDX-License-Identifier: BSD-3-Clause
// Finds the rank that has come furthest, and adds what a checkpoint lacks to the position that the
// others get.
#include "lockstep/train/rank_alignment.h"

#include <algorithm>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/checkpoint_broadcast.h"
#include "lockstep/comm/objects.h"
#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/train/option_checks.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr const char* kRestOfProgress = "rest of progress";

// How far a rank has come, in the order of the members.
struct Standing {
  std::int64_t epoch = -1;  // if the rank has no state
  std::int64_t steps = 0;
  // Of the callbacks after the last epoch, and its checkpoint: how many of these two are behind it.
  std::int64_t ends_of_epoch = 0;

  auto operator<=>(const Standing&) const = default;
};

std::int64_t ends_of_epoch(const TrainerProgress& progress) {
  if (!progress.ended) return 2;
  return progress.lacks_checkpoint_only ? 1 : 0;
}

// JSON has neither NaN nor infinity.
std::uint64_t bits_of(double number) {
  return std::bit_cast<std::uint64_t>(number);
}

double number_of(const json& bits) {
  return std::bit_cast<double>(bits.get<std::uint64_t>());
}

json json_of(const EpochSummary& summary) {
  json metrics = json::object();
  for (const auto& [name, value] : summary.metrics) metrics[name] = bits_of(value);
  return {{"epoch", summary.epoch},
          {"steps", summary.steps},
          {"skipped", summary.skipped},
          {"loss", bits_of(summary.loss)},
          {"seconds", bits_of(summary.seconds)},
          {"metrics", std::move(metrics)},
          {"evaluation", summary.evaluation ? json(bits_of(*summary.evaluation)) : json()}};
}

EpochSummary summary_of(const json& json) {
  EpochSummary summary{.epoch = json.at("epoch").get<std::int64_t>(),
                       .steps = json.at("steps").get<std::int64_t>(),
                       .skipped = json.at("skipped").get<std::int64_t>(),
                       .loss = number_of(json.at("loss")),
                       .seconds = number_of(json.at("seconds"))};
  for (const auto& [name, bits] : json.at("metrics").items()) {
    summary.metrics[name] = number_of(bits);
  }
  if (!json.at("evaluation").is_null()) summary.evaluation = number_of(json.at("evaluation"));
  return summary;
}

// A 1 for each parameter that is trained and a 0 for each frozen one.
std::string trained_parameters(const torch::nn::Module& module) {
  std::string trained;
  for (const at::Tensor& parameter : distinct_parameters(module)) {
    trained += parameter.requires_grad() ? '1' : '0';
  }
  return trained;
}

// Callbacks may have frozen parameters before this rank was started.
void set_trained_parameters(const torch::nn::Module& module, const std::string& trained) {
  const std::vector<at::Tensor> parameters = distinct_parameters(module);
  for (std::size_t i = 0; i < std::min(parameters.size(), trained.size()); ++i) {
    parameters[i].set_requires_grad(trained[i] == '1');
  }
}

std::string rest_of(const TrainerProgress& progress, const torch::nn::Module& module) {
  const EpochSums& sums = progress.sums;
  const double losses = sums.losses.defined() ? sums.losses.item<double>() : 0;
  return json{{"losses", bits_of(losses)},
              {"weights", bits_of(sums.weights)},
              {"steps", sums.steps},
              {"skipped", sums.skipped},
              {"ended", progress.ended ? json_of(*progress.ended) : json()},
              {"lacks_checkpoint_only", progress.lacks_checkpoint_only},
              {"trained", trained_parameters(module)}}
      .dump();
}

void add_rest(TrainerProgress& progress, const torch::nn::Module& module, const std::string& text) {
  const json rest = json::parse(text);
  progress.sums = {.losses = at::full({}, number_of(rest.at("losses")), at::kDouble),
                   .weights = number_of(rest.at("weights")),
                   .steps = rest.at("steps").get<std::int64_t>(),
                   .skipped = rest.at("skipped").get<std::int64_t>()};
  if (!rest.at("ended").is_null()) progress.ended = summary_of(rest.at("ended"));
  progress.lacks_checkpoint_only = rest.at("lacks_checkpoint_only").get<bool>();
  set_trained_parameters(module, rest.at("trained").get<std::string>());
}

}  // namespace

std::string Alignment::text() const {
  if (receivers.empty()) return "";
  const bool several = receivers.size() > 1;
  return fmt::format("; rank{} {} ha{} got the state of rank {}", several ? "s" : "",
                     fmt::join(receivers, ", "), several ? "ve" : "s", donor);
}

Alignment align_ranks(TrainerProgress& progress, bool has_state, const CheckpointContents& contents,
                      EpochSampler& sampler, ProcessGroup& group) {
  const CallScope scope(CallOrigin::trainer);
  Standing own;
  if (has_state) own = {progress.epoch, progress.steps, ends_of_epoch(progress)};
  const std::vector<Standing> standings = all_gather_object(own, group);
  const auto furthest = std::ranges::max_element(standings);
  if (furthest->epoch < 0) {
    throw Error(trainer_on(group), "no rank of this generation has a state to train from",
                "resume the job from a checkpoint, unless it has finished");
  }
  Alignment made{.donor = static_cast<int>(furthest - standings.begin())};
  for (int rank = 0; rank < group.size(); ++rank) {
    if (standings[static_cast<std::size_t>(rank)] < *furthest) made.receivers.push_back(rank);
  }
  CheckpointPosition position = position_of(progress, &sampler, group);
  if (made.receivers.empty()) {
    sampler.resume(position.data);
    progress.batches = 0;  // the sampler skips them
    return made;
  }
  const bool lacks = own < *furthest;
  position.step = furthest->steps;
  position.notes[kRestOfProgress] = rest_of(progress, *contents.module);
  position = share_state(contents, position, made.donor, lacks, group);
  if (!lacks) {
    sampler.resume(position.data);
    progress.batches = 0;
    return made;
  }
  progress = progress_at(position, &sampler, group);
  add_rest(progress, *contents.module, position.notes.at(kRestOfProgress));
  return made;
}

}  // namespace lockstep
