// SPDX-License-Identifier: BSD-3-Clause
// Writes losses, rates and metrics as events, and numbers the steps for the bar.
#include "lockstep/train/own_callbacks.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/comm/on_rank_0.h"
#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/train/option_checks.h"
#include "lockstep/train/tensorboard_writer.h"

namespace lockstep {
namespace {

// Reading a loss waits for a GPU.
constexpr std::int64_t kStepsPerEvent = 10;

class TensorBoardCallback final : public TrainerCallback {
 public:
  explicit TensorBoardCallback(const std::filesystem::path& folder) : writer_(folder) {}

  void resumed(std::int64_t steps) override { writer_.purge(steps + 1); }
  void after_step(const StepSummary& summary) override {
    step_ = summary.step;
    if (summary.step % kStepsPerEvent != 0) return;
    writer_.add_scalar("train/loss", summary.loss.item<double>(), step_);
    writer_.add_scalar("train/learning_rate", summary.learning_rate, step_);
  }
  void after_epoch(const EpochSummary& summary) override {
    writer_.add_scalar("epoch/loss", summary.loss, step_);
    for (const auto& [name, value] : summary.metrics) {
      writer_.add_scalar("epoch/" + name, value, step_);
    }
    writer_.flush();
  }

 private:
  TensorBoardWriter writer_;
  std::int64_t step_ = 0;
};

}  // namespace

std::shared_ptr<TrainerCallback> tensorboard_callback(
    const std::optional<std::filesystem::path>& folder, ProcessGroup& group) {
  const CallScope scope(CallOrigin::trainer);
  std::shared_ptr<TrainerCallback> callback;
  try {
    on_rank_0(group, [&] {
      if (folder) callback = std::make_shared<TensorBoardCallback>(*folder);
    });
  } catch (const Error&) {
    rethrow_within(trainer_on(group));
  }
  return callback;
}

// A step counts as a batch of one sample, so that steps are known for batches of any type.
ProgressBarCallback::ProgressBarCallback(std::int64_t epochs, std::int64_t steps_per_epoch,
                                         int ranks)
    : run_{.epochs = epochs, .per_epoch = steps_per_epoch, .global_batch_size = 1, .ranks = ranks},
      log_(OutputStream::err) {}

void ProgressBarCallback::before_epoch(std::int64_t /*epoch*/) {
  steps_of_epoch_ = 0;
}

void ProgressBarCallback::after_step(const StepSummary& summary) {
  StepSummary numbered = summary;
  numbered.samples = std::max<std::int64_t>(summary.samples, 0);
  if (samples_of_step_ == 0) samples_of_step_ = numbered.samples * run_.ranks;
  ++steps_of_epoch_;
  // Samples include what a resumed epoch has done before.
  if (samples_of_step_ > 0 && summary.samples_of_epoch > 0) {
    steps_of_epoch_ = (summary.samples_of_epoch + samples_of_step_ - 1) / samples_of_step_;
  }
  numbered.samples_of_epoch = std::min(steps_of_epoch_, run_.per_epoch);
  log_.step(run_, numbered);
}

void ProgressBarCallback::after_epoch(const EpochSummary& /*summary*/) {
  hide();
}

void ProgressBarCallback::on_exception(const std::exception& /*error*/) {
  hide();
}

}  // namespace lockstep
