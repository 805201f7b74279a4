// SPDX-License-Identifier: BSD-3-Clause
// What a training run leaves for other programs while it runs: lines of JSON, which docs/cli.md
// documents, and event files for TensorBoard.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "lockstep/core/unique_fd.h"
#include "lockstep/train/tensorboard_writer.h"
#include "tools/recipes/step_seen.h"

namespace lockstep {

// At the end of an epoch.
struct EpochSeen {
  // From 1, and over all epochs.
  std::int64_t epoch = 1;
  std::int64_t step = 1;
  // Over the samples of all ranks.
  double mean_loss = 0;
  double seconds = 0;
  std::optional<double> accuracy = {};
};

// Usually only rank 0 has one. Used by one thread at a time. A disk that fails while training goes
// on ends the records, not the training.
class TrainingRecords {
 public:
  // Opens a new or existing file to append to, and an event file in a new or existing folder;
  // without either, all calls do nothing. If the file ends in half a line, it ends that line.
  // UsageError if the file cannot be opened, BackendError if it cannot be written or the event file
  // cannot be made.
  TrainingRecords(const std::optional<std::filesystem::path>& metrics_file,
                  const std::optional<std::filesystem::path>& tensorboard_folder,
                  at::Device device);

  // Of a run that goes on after so many steps: TensorBoard forgets those that a killed run did
  // later.
  void resume_after(std::int64_t steps);
  // Call it before an epoch's first step, so that times do not include an evaluation.
  void start();
  // Call it after each step. Every tenth step and the last of an epoch leave a record.
  void step(const StepSeen& seen);
  void epoch(const EpochSeen& seen);

  // Why records are missing, for each of the two; usually nothing.
  std::vector<std::string> errors() const;

 private:
  using Clock = std::chrono::steady_clock;

  bool wanted() const { return metrics_ || events_; }
  void write_line(const std::string& line);
  // After an error of the disk there are no more lines, but a warning.
  void try_write_line(const std::string& line);
  // The peak in 10^6 bytes, at most a second old; of replicas on several GPUs, that of the first.
  std::optional<double> peak_mb();

  std::filesystem::path metrics_file_;
  std::string metrics_error_;
  UniqueFd metrics_;
  std::optional<TensorBoardWriter> events_;
  at::Device device_;
  // Since the previous record or the start of the epoch.
  std::int64_t samples_ = 0;
  Clock::time_point since_ = Clock::now();
  std::optional<double> peak_mb_;
  std::optional<Clock::time_point> peak_seen_;
};

}  // namespace lockstep
