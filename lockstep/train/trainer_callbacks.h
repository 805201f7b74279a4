// SPDX-License-Identifier: BSD-3-Clause
// The callbacks of a fit(), in the order in which they are called: the program's, and then the
// Trainer's own.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/train/fit_options.h"
#include "lockstep/train/own_callbacks.h"

namespace lockstep {

class TrainerCallbacks {
 public:
  explicit TrainerCallbacks(std::vector<std::shared_ptr<TrainerCallback>> of_program = {});

  // Adds a progress bar.
  void show_bar(std::int64_t epochs, std::int64_t steps_per_epoch, int ranks);
  bool has_bar() const { return bar_ != nullptr; }
  // Removes the bar from the terminal until the next step.
  void hide_bar() const;
  // Collective. On rank 0, adds a callback that writes events into the folder, unless it has one.
  // Does nothing without a folder. `others_wrote`: other ranks may have written events of later
  // steps than `steps`, which are dropped.
  void add_tensorboard(const std::optional<std::filesystem::path>& folder, ProcessGroup& group,
                       bool others_wrote, std::int64_t steps);
  // fit() ends with this exception.
  void tell(const std::exception& error) const;

  bool empty() const { return all_.empty(); }
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }

 private:
  std::vector<std::shared_ptr<TrainerCallback>> all_;
  std::shared_ptr<ProgressBarCallback> bar_;  // one of these; null if there is none
  bool writes_events_ = false;                // one of these does
};

}  // namespace lockstep
