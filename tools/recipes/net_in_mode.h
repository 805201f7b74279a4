// SPDX-License-Identifier: BSD-3-Clause
// A net, wrapped as its training's mode requires.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <torch/nn/modules/container/sequential.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tools/recipes/recipe.h"
#include "tools/recipes/train.h"
#include "tools/recipes/trained.h"

namespace lockstep {

class NetInMode {
 public:
  // Collective. On GPUs, dp's replicas are on the group's device and the following ones.
  NetInMode(const Recipe& recipe, torch::nn::Sequential net, TrainMode mode,
            const TrainOptions& options, std::shared_ptr<ProcessGroup> group);

  // For the recipe's make_optimizer. Valid while this object lives.
  Trained trained();

  at::Tensor forward(const at::Tensor& input);
  // Throws NonFiniteGradient if the options request that check.
  void backward(const at::Tensor& loss);
  // Call it after the optimizer's step, which is counted from 1. OutOfSync if the options request
  // the check at this step.
  void end_step(std::int64_t step);

  // Bytes exchanged with other ranks or devices since the start.
  std::uint64_t bytes_moved() const;

 private:
  torch::nn::Sequential net_;
  std::shared_ptr<ProcessGroup> group_;
  bool shards_optimizer_;
  bool check_finite_;
  std::optional<std::int64_t> check_in_sync_;
  DistributedDataParallel<torch::nn::Sequential> ddp_;  // empty in the other modes
  DataParallel<torch::nn::Sequential> dp_;
};

}  // namespace lockstep
