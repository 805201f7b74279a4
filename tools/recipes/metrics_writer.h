// SPDX-License-Identifier: BSD-3-Clause
// Writes the metrics of a training run while it runs, for other programs: lines of JSON, which
// docs/cli.md documents, and event files for TensorBoard.
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
#include "lockstep/train/trainer_options.h"
#include "tools/recipes/observation.h"

namespace lockstep {

// Usually only rank 0 has a writer. Used by one thread at a time. A disk that fails during training
// ends the metrics, not the training.
class MetricsWriter {
 public:
  // Opens a new or existing file to append to, and an event file in a new or existing folder;
  // without either, all calls do nothing. Completes a file that ends in half a line with a newline.
  // UsageError if the file cannot be opened, BackendError if it cannot be written or the event file
  // cannot be made.
  MetricsWriter(const std::optional<std::filesystem::path>& metrics_file,
                const std::optional<std::filesystem::path>& tensorboard_folder, at::Device device);

  // Call it if a run resumes after `steps` steps: TensorBoard drops the later steps of a killed
  // run.
  void resume_after(std::int64_t steps);
  // Call it before an epoch's first step, so that times do not include an evaluation.
  void start();
  // Call it after each step. Writes a record for every tenth step, and for the last of an epoch.
  void step(const RunSteps& run, const StepSummary& step);
  void epoch(const RunSteps& run, const EpochSummary& epoch);

  // Returns why metrics are missing, for the file and the folder; usually nothing.
  std::vector<std::string> errors() const;

 private:
  using Clock = std::chrono::steady_clock;

  bool wanted() const { return metrics_ || events_; }
  void write_line(const std::string& line);
  // After an error of the disk, warns, and writes no more lines.
  void try_write_line(const std::string& line);

  std::filesystem::path metrics_file_;
  std::string metrics_error_;
  UniqueFd metrics_;
  std::optional<TensorBoardWriter> events_;
  PeakGauge peak_;  // for replicas on several GPUs, the memory of the first
  // Counted since the previous record or the start of the epoch.
  std::int64_t samples_ = 0;
  Clock::time_point since_ = Clock::now();
};

}  // namespace lockstep
