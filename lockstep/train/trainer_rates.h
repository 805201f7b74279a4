// SPDX-License-Identifier: BSD-3-Clause
// The learning rates of a Trainer's optimizer: scaled, scheduled, reduced on a plateau, and kept in
// checkpoints.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "lockstep/optim/lr_schedule.h"
#include "lockstep/optim/lr_scheduler.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

class TrainerRates {
 public:
  // Keeps a reference to the options.
  explicit TrainerRates(const TrainerOptions& options) : options_(options) {}

  // Call it once. Multiplies the optimizer's rates by .lr_scale. The optimizer must outlive this
  // object. UsageError for options of .reduce_lr_on_plateau out of range, with nothing changed.
  void use(torch::optim::Optimizer& optimizer);
  // Continues with another optimizer, which has the same rates and must outlive this object.
  void set_optimizer(torch::optim::Optimizer& optimizer);

  // The numbers that a checkpoint saves and replaces.
  std::map<std::string, double>& numbers() { return numbers_; }
  // Call it before a checkpoint is loaded into the optimizer and numbers().
  void before_load();
  // Call it between before_load() and begin(), if the checkpoint's metric is another one: the
  // plateau forgets what it has seen.
  void forget_plateau();
  // Call it when fit() begins, after a checkpoint was loaded, with the number of steps so far.
  // `schedule`: the schedule of the whole run, if there is one. Continues with the initial rates of
  // the checkpoint, or of the last fit(). Returns a line about each difference between the program
  // and the checkpoint.
  std::vector<std::string> begin(const std::optional<optim::LRSchedule>& schedule,
                                 std::int64_t steps, bool loaded);

  // Sets the rates of the next step.
  void step();
  // Reduces the rates if the metric has stopped improving. Returns whether it has.
  bool evaluated(double metric);
  // Call it after callbacks and evaluations, which may have changed rates: sets the rates to the
  // bits that a resumed run has.
  void settle();
  // Call it before a checkpoint is saved: updates numbers().
  void note_numbers();

 private:
  // What a checkpoint says, in the names of an LRScheduler.
  struct Saved {
    std::vector<double> program_rates = {};
    std::map<std::string, double> state = {};
    double lr_scale = 1;
    bool has_schedule = false;
  };

  Saved read(const std::map<std::string, double>& numbers) const;
  std::vector<std::string> differences(const Saved& saved,
                                       const std::vector<std::string>& schedules) const;

  const TrainerOptions& options_;
  torch::optim::Optimizer* optimizer_ = nullptr;
  // One for each parameter group: as the program made them, and what the schedule starts from.
  std::vector<double> program_rates_;
  std::vector<double> initial_rates_;
  std::optional<optim::LRScheduler> scheduler_;
  std::optional<optim::ReduceLROnPlateau> plateau_;
  std::map<std::string, double> numbers_;
};

}  // namespace lockstep
