// SPDX-License-Identifier: BSD-3-Clause
// The Trainer of a recipe's net, in any mode.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/modules/container/sequential.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/train/trainer.h"
#include "tools/recipes/recipe.h"
#include "tools/recipes/recipe_options.h"
#include "tools/recipes/train_result.h"

namespace lockstep {

class RecipeTrainer {
 public:
  // Collective. `start` describes the run.
  RecipeTrainer(const Recipe& recipe, torch::nn::Sequential net, const RecipeOptions& options,
                const TrainingData& data, const TrainResult& start,
                std::shared_ptr<ProcessGroup> group, std::function<void(const std::string&)> log);

  Trainer<torch::nn::Sequential>& trainer() { return trainer_; }
  // The group that trains; in an elastic job it changes during fit().
  ProcessGroup& group() const { return trainer_.group(); }
  // UsageError if the data were standardized with other statistics than the checkpoint's.
  void check_statistics() const;
  // Returns the bytes exchanged with other ranks or devices since the start.
  std::uint64_t bytes_moved() const;

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::vector<NamedTensor> of_data_;
  std::vector<NamedTensor> of_checkpoint_;
  Trainer<torch::nn::Sequential> trainer_;
  std::shared_ptr<ProcessGroup> group_of_norms_;  // null without a group of their own
};

}  // namespace lockstep
