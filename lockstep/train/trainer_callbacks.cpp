// SPDX-License-Identifier: BSD-3-Clause
// Adds the Trainer's own callbacks to the program's.
#include "lockstep/train/trainer_callbacks.h"

#include <utility>

namespace lockstep {

TrainerCallbacks::TrainerCallbacks(std::vector<std::shared_ptr<TrainerCallback>> of_program)
    : all_(std::move(of_program)) {}

void TrainerCallbacks::show_bar(std::int64_t epochs, std::int64_t steps_per_epoch, int ranks) {
  bar_ = std::make_shared<ProgressBarCallback>(epochs, steps_per_epoch, ranks);
  all_.push_back(bar_);
}

void TrainerCallbacks::hide_bar() const {
  if (bar_) bar_->hide();
}

void TrainerCallbacks::add_tensorboard(const std::optional<std::filesystem::path>& folder,
                                       ProcessGroup& group, bool others_wrote, std::int64_t steps) {
  const auto writer = tensorboard_callback(writes_events_ ? std::nullopt : folder, group);
  if (!writer) return;
  writes_events_ = true;
  if (others_wrote) writer->resumed(steps);
  all_.push_back(writer);
}

void TrainerCallbacks::tell(const std::exception& error) const {
  for (const auto& callback : all_) callback->on_exception(error);
}

}  // namespace lockstep
