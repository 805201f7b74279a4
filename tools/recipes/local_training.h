// SPDX-License-Identifier: BSD-3-Clause
// Trains in new processes of this machine, and returns the result.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/launch/agent.h"
#include "tools/recipes/observation.h"
#include "tools/recipes/train_result.h"

namespace lockstep {

// The user stopped training with a signal.
class TrainingStopped : public ErrorType<TrainingStopped> {
 public:
  TrainingStopped(int signal, const std::string& message) : ErrorType(message), signal_(signal) {}
  int signal() const { return signal_; }

 private:
  int signal_;
};

struct LocalTrainingOptions {
  // The training program, which calls the functions below, and its arguments.
  std::vector<std::string> program;
  int ranks = 1;
  // The threads of each rank, which override the environment; if empty, the ranks share the cores.
  std::optional<int> threads = {};
  // The destination of the ranks' output. On a terminal, a progress bar stays below it.
  MergedOutput output = {};
};

// Blocks until training has ended. Rethrows a rank's error here, with its type among
// UsageError, PeerLost, TimeoutError, BackendError, NonFiniteGradient, OutOfSync and Error. A rank
// that could not report an error causes an Error with the launcher's report, or PeerLost if a
// signal killed it. TrainingStopped if this process was told to stop, BackendError if its standard
// output cannot be written. Call it only from the main thread.
TrainResult run_local_training(const LocalTrainingOptions& options);

// In a rank: returns the observer that shows each step in the progress bar of the process that
// started it; empty if that process shows none. Shows no more steps once that process does not
// answer within 0.1 s.
StepObserver launcher_progress();

// In a rank: returns whether run_local_training started this process. If so, the rank hands over
// its result or error instead of printing it.
bool started_by_local_training();
void hand_over(const TrainResult& result);
void hand_over(const std::exception& error);

}  // namespace lockstep
