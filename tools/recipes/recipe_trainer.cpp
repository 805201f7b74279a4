// SPDX-License-Identifier: BSD-3-Clause
// Translates the options of a recipe's training into those of a Trainer.
#include "tools/recipes/recipe_trainer.h"

#include <utility>

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/parallel/sync_batch_norm.h"

namespace lockstep {
namespace {

TrainingMode trainer_mode(TrainMode mode) {
  switch (mode) {
    case TrainMode::single:
      return TrainingMode::single;
    case TrainMode::dp:
      return TrainingMode::data_parallel;
    case TrainMode::ddp:
      return TrainingMode::distributed;
  }
  return TrainingMode::automatic;
}

DataParallelOptions replica_options(int replicas, at::Device first) {
  if (!first.is_cuda()) return {.replicas = replicas};
  DataParallelOptions options;
  for (int i = 0; i < replicas; ++i) {
    options.device_ids.emplace_back(first.index() + i);
  }
  return options;
}

// The group of the net's batch normalization; null if it has none over ranks.
std::shared_ptr<ProcessGroup> group_of_norms(const torch::nn::Module& net) {
  std::shared_ptr<ProcessGroup> group;
  net.apply([&](const torch::nn::Module& module) {
    if (const auto* norm = module.as<SyncBatchNorm>()) group = norm->group();
  });
  return group;
}

std::vector<NamedTensor> clones(std::vector<NamedTensor> tensors) {
  for (auto& [name, tensor] : tensors) tensor = tensor.clone();
  return tensors;
}

TrainerOptions trainer_options(const Recipe& recipe, TrainMode mode, const TrainOptions& options,
                               const TrainResult& start, std::int64_t steps,
                               const ProcessGroup& group) {
  const bool shards = recipe.shards_optimizer && mode == TrainMode::ddp;
  TrainerOptions result{.mode = trainer_mode(mode),
                        .epochs = start.epochs,
                        .schedule = {.base = 1, .scale = start.learning_rate_scale, .steps = steps},
                        .check_finite = options.check_finite,
                        .check_in_sync = options.check_in_sync.value_or(0),
                        // The statistics of the same batch as in one process.
                        .sync_batchnorm = mode == TrainMode::ddp,
                        // A rank that updates a part of the parameters needs only that part's
                        // gradients, except where ranks compare theirs.
                        .distributed = {.whole_gradients = !shards || options.check_in_sync},
                        .checkpoints = options.checkpoints,
                        .shard_optimizer = shards,
                        .batches_per_line = options.on_step ? 0 : 100};
  if (options.amp) result.amp = *options.amp == Amp::bf16 ? at::kBFloat16 : at::kHalf;
  if (mode == TrainMode::dp) {
    result.data_parallel = replica_options(options.replicas, group.device());
  }
  return result;
}

}  // namespace

RecipeTrainer::RecipeTrainer(const Recipe& recipe, torch::nn::Sequential net, TrainMode mode,
                             const TrainOptions& options, const TrainingData& data,
                             const TrainResult& start, std::int64_t steps,
                             std::shared_ptr<ProcessGroup> group,
                             std::function<void(const std::string&)> log)
    : group_(std::move(group)),
      of_data_(data.statistics),
      of_checkpoint_(clones(data.statistics)),
      trainer_(net, group_, [&] {
        TrainerOptions made = trainer_options(recipe, mode, options, start, steps, *group_);
        if (made.checkpoints) made.checkpoints->tensors = of_checkpoint_;
        made.log = std::move(log);
        return made;
      }()) {
  group_of_norms_ = group_of_norms(*net);
  const auto& wrapper = trainer_.model().distributed();
  const bool shards = recipe.shards_optimizer && wrapper;
  trainer_.optimize_with(recipe.make_optimizer(
      {distinct_parameters(*net), shards ? wrapper.ptr().get() : nullptr}, start.learning_rate));
}

void RecipeTrainer::check_statistics() const {
  for (std::size_t i = 0; i < of_data_.size(); ++i) {
    const auto own = of_data_[i].tensor.item<double>();
    const auto saved = of_checkpoint_[i].tensor.item<double>();
    if (own == saved) continue;
    throw UsageError(
        fmt::format("rank {} of {}: {} is {} for these data, but {} in the checkpoint; continue "
                    "with the same data, or train anew",
                    group_->rank(), group_->size(), of_data_[i].name, own, saved));
  }
}

std::uint64_t RecipeTrainer::bytes_moved() const {
  const auto& model = trainer_.model();
  if (model.distributed()) {
    return group_->bytes_sent() + (group_of_norms_ ? group_of_norms_->bytes_sent() : 0);
  }
  return model.data_parallel() ? model.data_parallel()->bytes_moved() : 0;
}

}  // namespace lockstep
