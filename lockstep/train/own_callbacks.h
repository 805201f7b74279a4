// SPDX-License-Identifier: BSD-3-Clause
// The callbacks of a Trainer's own: events for TensorBoard, with the tags of `lockstep train`, and
// the progress bar.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>

#include "lockstep/comm/process_group.h"
#include "lockstep/train/fit_options.h"
#include "lockstep/train/progress_bar.h"
#include "lockstep/train/terminal_log.h"

namespace lockstep {

// Collective. Returns the callback of rank 0; null on other ranks, and without a folder on any
// rank. BackendError on every rank if rank 0 cannot make the folder.
std::shared_ptr<TrainerCallback> tensorboard_callback(
    const std::optional<std::filesystem::path>& folder, ProcessGroup& group);

// Shows a bar on standard error, which must be a terminal that can_show_status().
class ProgressBarCallback final : public TrainerCallback {
 public:
  ProgressBarCallback(std::int64_t epochs, std::int64_t steps_per_epoch, int ranks);

  void before_epoch(std::int64_t epoch) override;
  void after_step(const StepSummary& summary) override;
  void after_epoch(const EpochSummary& summary) override;
  void on_exception(const std::exception& error) override;

  // Removes the bar until the next step.
  void hide() { log_.hide(); }

 private:
  RunSteps run_;
  TerminalLog log_;
  std::int64_t steps_of_epoch_ = 0;
  std::int64_t samples_of_step_ = 0;  // of all ranks in a full step; 0 if unknown
};

}  // namespace lockstep
