// SPDX-License-Identifier: BSD-3-Clause
// Passes calls on to the loop.
#include "lockstep/train/trainer_base.h"

#include <utility>

#include "lockstep/train/trainer_loop.h"

namespace lockstep {

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
