// SPDX-License-Identifier: BSD-3-Clause
// Trains one model on one batch, which is drawn once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/optimizer.h>

#include "lockstep/amp/grad_scaler.h"
#include "tools/bench/models.h"

namespace lockstep::bench {

// A communication hook of DistributedDataParallel: fp16_compress_hook, bf16_compress_hook, or
// power_sgd_hook of rank 1 from the third step on.
enum class CommHookKind : std::uint8_t { none, fp16, bf16, power_sgd };

std::string_view name(CommHookKind kind);

// The type in which Autocast computes layers; with fp16 a GradScaler scales the loss.
enum class AmpKind : std::uint8_t { none, bf16, fp16 };

std::string_view name(AmpKind kind);

struct TrainingStep {
  Model model;
  // Default: the model's batch size.
  std::optional<std::int64_t> batch_size = {};
  OptimizerKind optimizer = OptimizerKind::torch;
  // Resets gradients to none before each step, instead of zeroing them in place.
  bool set_to_none = false;
  // The option of DistributedDataParallel.
  bool check_finite = false;
  CommHookKind comm_hook = CommHookKind::none;
  AmpKind amp = AmpKind::none;
  at::Device device = at::kCPU;

  std::int64_t samples() const { return batch_size.value_or(model.batch_size); }
};

class Training {
 public:
  struct Wrapped {
    std::function<at::Tensor(const at::Tensor&)> forward;
    // The wrapper, if one computes `forward`.
    std::shared_ptr<DistributedDataParallelBase> model = nullptr;
  };
  // Wraps the net; without it, the net's own forward is used.
  using Wrap = std::function<Wrapped(torch::nn::Sequential&)>;

  explicit Training(const TrainingStep& step, const Wrap& wrap = {});

  // Blocks until the device has finished the step.
  void step();
  // Without its wrapper.
  const torch::nn::Module& net() const { return *net_; }

 private:
  at::Tensor loss();
  void wait_for_device() const;
  void clear_gradients();

  TrainingStep step_;
  torch::nn::Sequential net_;
  Wrapped wrapped_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  GradScaler scaler_;
  at::Tensor input_;
  at::Tensor target_;
};

}  // namespace lockstep::bench
