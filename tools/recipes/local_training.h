// SPDX-License-Identifier: BSD-3-Clause
// A training by fresh processes of this machine, whose result comes back here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/recipes/train_result.h"

#include "lockstep/core/error.h"
#include "lockstep/launch/agent.h"

namespace lockstep {

// The user stopped the training with a signal.
class TrainingStopped : public Error {
 public:
  TrainingStopped(int signal, const std::string& message) : Error(message), signal_(signal) {}
  int signal() const { return signal_; }

 private:
  int signal_;
};

struct LocalTrainingOptions {
  // A program that trains, and calls the functions below; with its arguments.
  std::vector<std::string> program;
  int ranks = 1;
  // Of each rank, whatever the environment says; without it the cores are shared out.
  std::optional<int> threads = {};
  // Where what the ranks print goes.
  MergedOutput output = {};
};

// Blocks until the training has ended. What a rank threw is thrown here, with its type among
// UsageError, PeerLost, TimeoutError, BackendError, NonFiniteGradient, OutOfSync and Error. A rank
// that could say nothing any more is an Error with the launcher's report, a PeerLost if a signal
// killed it. TrainingStopped if this process was told to stop, BackendError if its standard output
// cannot be written. From the main thread only.
TrainResult run_local_training(const LocalTrainingOptions& options);

// In a rank: true if run_local_training started this process. Then it hands over its result, or
// its error, instead of printing it.
bool started_by_local_training();
void hand_over(const TrainResult& result);
void hand_over(const std::exception& error);

}  // namespace lockstep
