// SPDX-License-Identifier: BSD-3-Clause
// Passes calls on to the loop.
#include "lockstep/train/trainer_base.h"

#include <numeric>
#include <utility>
#include <vector>

#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/train/trainer_loop.h"

namespace lockstep {

void detail::sync_batchnorm(torch::nn::Module& net, ProcessGroup& group) {
  convert_sync_batchnorm(net, group);
  bool any = false;
  net.apply([&](torch::nn::Module& module) { any |= module.as<SyncBatchNorm>() != nullptr; });
  if (!any || group.size() == 1) return;
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  convert_sync_batchnorm(net, group.split(ranks));
}

TrainerBase::TrainerBase(std::shared_ptr<ProcessGroup> group, TrainerOptions options)
    : loop_(std::make_unique<TrainerLoop>(std::move(group), std::move(options))) {}

TrainerBase::~TrainerBase() = default;

ProcessGroup& TrainerBase::group() const {
  return loop_->group();
}

torch::optim::Optimizer& TrainerBase::optimizer() const {
  return loop_->step().optimizer();
}

GradScaler& TrainerBase::scaler() {
  return loop_->step().scaler();
}

const TrainerOptions& TrainerBase::options() const {
  return loop_->options();
}

void TrainerBase::use(std::shared_ptr<torch::nn::Module> module,
                      std::shared_ptr<DistributedDataParallelBase> model,
                      std::unique_ptr<torch::optim::Optimizer> optimizer) {
  loop_->step().use(std::move(module), std::move(model), std::move(optimizer));
}

std::vector<EpochSummary> TrainerBase::run_epochs(
    const std::function<void(const detail::TrainOn&)>& run_batches, const FitOptions& fit) {
  return loop_->run(run_batches, fit);
}

}  // namespace lockstep
