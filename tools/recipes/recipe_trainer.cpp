// SPDX-License-Identifier: BSD-3-Clause
// Completes the options of the Trainer for a recipe, its data and its group.
#include "tools/recipes/recipe_trainer.h"

#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/parallel/sync_batch_norm.h"

namespace lockstep {
namespace {

// On GPUs, names the replicas by their devices.
void place_replicas(DataParallelOptions& options, at::Device first) {
  if (!first.is_cuda()) return;
  for (int i = 0; i < options.replicas; ++i) options.device_ids.emplace_back(first.index() + i);
  options.replicas = 0;
}

// Returns the group of the net's batch normalization; null if no layer normalizes over ranks.
std::shared_ptr<ProcessGroup> group_of_norms(const torch::nn::Module& net) {
  std::shared_ptr<ProcessGroup> group;
  net.apply([&](const torch::nn::Module& module) {
    if (const auto* norm = module.as<SyncBatchNorm>()) group = norm->group();
  });
  return group;
}

// A number, or one for each channel.
std::string numbers_of(const at::Tensor& statistic) {
  const auto count = static_cast<std::size_t>(statistic.numel());
  return fmt::format("{}", fmt::join(std::span(statistic.data_ptr<double>(), count), ", "));
}

std::vector<NamedTensor> clones(std::vector<NamedTensor> tensors) {
  for (auto& [name, tensor] : tensors) tensor = tensor.clone();
  return tensors;
}

// Gradual warm-up as in Goyal et al. 2017: from the unscaled to the scaled rate, in the first tenth
// of all steps (the paper takes 5 of 90 epochs).
TrainerSchedule warm_up(double scale) {
  return [scale](std::int64_t steps) -> optim::LRSchedule {
    const std::int64_t warmup = steps / 10;
    if (warmup == 0) return optim::ConstantLR{.factor = 1};
    return optim::LinearLR{.start_factor = 1 / scale, .total_iters = warmup};
  };
}

// Whether each rank updates a part of the parameters. With microbatches every rank has the whole
// gradients anyway.
bool shards_optimizer(const Recipe& recipe, const TrainerOptions& options) {
  if (options.mode != TrainingMode::distributed) return false;
  return options.distributed.one_copy_per_host ||
         (recipe.shards_optimizer && options.microbatches == 0);
}

TrainerOptions trainer_options(const Recipe& recipe, const RecipeOptions& options,
                               const TrainResult& start, const ProcessGroup& group) {
  TrainerOptions made = options.trainer;
  const bool distributed = made.mode == TrainingMode::distributed;
  made.epochs = start.epochs;
  if (made.lr_scale != 1) made.lr_schedule = warm_up(made.lr_scale);
  // Gives a batch the statistics that it has in one process; a microbatch has them anyway.
  made.sync_batchnorm = distributed && made.microbatches == 0;
  made.shard_optimizer = shards_optimizer(recipe, made);
  // A rank that updates a part of the parameters needs only the gradients of that part, unless
  // ranks compare gradients.
  made.distributed.whole_gradients =
      !made.shard_optimizer || made.check_in_sync > 0 || made.microbatches > 0;
  if (made.mode == TrainingMode::data_parallel) {
    place_replicas(made.data_parallel, group.device());
  } else {
    made.data_parallel.replicas = 0;
  }
  made.batches_per_line = options.on_step ? 0 : 100;
  return made;
}

}  // namespace

RecipeTrainer::RecipeTrainer(const Recipe& recipe, torch::nn::Sequential net,
                             const RecipeOptions& options, const TrainingData& data,
                             const TrainResult& start, std::shared_ptr<ProcessGroup> group,
                             std::function<void(const std::string&)> log)
    : group_(std::move(group)),
      of_data_(data.statistics),
      of_checkpoint_(clones(data.statistics)),
      trainer_(net, group_, [&] {
        TrainerOptions made = trainer_options(recipe, options, start, *group_);
        const bool is_wrapped = made.mode == TrainingMode::distributed;
        // A wrapper asks for a group; a microbatch is normalized by itself.
        if (is_wrapped && made.microbatches > 0) convert_sync_batchnorm(*net, make_self_group());
        if (made.checkpoints) made.checkpoints->tensors = of_checkpoint_;
        made.log = std::move(log);
        return made;
      }()) {
  group_of_norms_ = group_of_norms(*net);
  const bool shards = shards_optimizer(recipe, options.trainer);
  const bool in_microbatches = options.trainer.microbatches > 0;
  trainer_.optimize_with([this, net, shards, in_microbatches, make = recipe.make_optimizer,
                          rate = start.learning_rate] {
    Trained trained{distinct_parameters(*net)};
    if (shards && in_microbatches) trained.group = &trainer_.group();
    if (shards && !in_microbatches) trained.wrapper = trainer_.model().distributed().ptr().get();
    return make(trained, rate);
  });
}

void RecipeTrainer::check_statistics() const {
  for (std::size_t i = 0; i < of_data_.size(); ++i) {
    const at::Tensor& own = of_data_[i].tensor;
    const at::Tensor& saved = of_checkpoint_[i].tensor;
    if (own.equal(saved)) continue;
    throw UsageError(group_->context("train"),
                     fmt::format("{} is {} for these data, but {} in the checkpoint",
                                 of_data_[i].name, numbers_of(own), numbers_of(saved)),
                     "continue with the same data, or train from the beginning");
  }
}

std::uint64_t RecipeTrainer::bytes_moved() const {
  const auto& model = trainer_.model();
  if (model.distributed()) {
    return group().bytes_sent() + (group_of_norms_ ? group_of_norms_->bytes_sent() : 0);
  }
  return model.data_parallel() ? model.data_parallel()->bytes_moved() : 0;
}

}  // namespace lockstep
