// SPDX-License-Identifier: BSD-3-Clause
// Runs a function as several rank processes, kills them on cue, and gives the test what became of
// each. Links no libtorch, and does not use lockstep::spawn, which is itself under test.
//
// The ranks are forked from the test, which must not have started libtorch's threads by then: do
// all work with tensors inside the ranks. EXPECT and ASSERT work in a rank and fail the test, with
// the rank named; HasFailure() does not, ask Rank::failed().
#pragma once

#include <chrono>
#include <functional>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace lockstep::testing {

class Rank;

// A signal for a rank when it announces a point.
struct SignalOnCue {
  int rank = 0;
  std::string cue = {};
  int signal = 0;
};

struct LaunchOptions {
  // For all ranks together. At it every rank is killed, and the test fails with what each was
  // doing.
  std::chrono::milliseconds deadline = std::chrono::seconds(60);
  // A rank that is to be signalled must announce the cue, else the test fails. One that is still
  // stopped when the others have ended is killed.
  std::vector<SignalOnCue> signals = {};
  // Ranks that may end their process themselves, with any exit code.
  std::vector<int> may_exit = {};
  // Errors that leave the function are for the test to judge. Otherwise they fail it.
  bool errors_are_outcomes = false;
};

struct RankOutcome {
  // What Rank::report was given.
  std::string result;
  // The exception that left the function: empty, or "PeerLost", "UsageError", ... and what().
  std::string error_type;
  std::string error;
  // PeerLost::rank().
  int lost_rank = -1;
  // How the process ended: by this signal, or with this exit code if there was none.
  int signal = 0;
  int exit_code = 0;
};

// Runs the function in size processes and waits for all of them. The outcomes are in the order of
// the ranks. Whatever goes wrong is a failure of the calling test, reported at its line.
std::vector<RankOutcome> run_ranks(int size, const std::function<void(Rank&)>& function,
                                   const LaunchOptions& options = {},
                                   std::source_location where = std::source_location::current());

// What a rank's function sees. To be used by one thread, except cue() and note().
class Rank {
 public:
  int rank() const;
  int size() const;

  // Where the ranks of this launch rendezvous, "file:///...": a file that is not there yet, in a
  // folder that goes away with the launch. Each name is a place of its own.
  std::string rendezvous_url(std::string_view name = "group") const;
  // That folder's path.
  const std::string& folder() const;

  // Announces a point to the test and to the other ranks.
  void cue(std::string_view name);
  // Waits until that rank has announced the point, and its signal, if one was planned, was sent.
  void await(int rank, std::string_view name);
  // Waits for a signal that ends this rank.
  [[noreturn]] void await_signal();

  // 0 if ranks are threads.
  pid_t pid_of(int rank) const;
  // How long ago the test signalled that rank. Zero if it has not.
  std::chrono::milliseconds since_signal(int rank) const;
  // How long ago the test saw that rank's end, less the times for which the ranks' main threads
  // have since waited for a core, all together. Zero if the test has not seen it. The rank must be
  // the first that ended.
  std::chrono::milliseconds since_end(int rank) const;

  // What this rank is doing, for the report of a launch that took too long.
  void note(std::string_view text);
  // Hands bytes to the test; once.
  void report(std::string_view result);
  // True once an EXPECT or ASSERT has failed in this rank.
  bool failed() const;

  // Ranks are made by run_ranks.
  struct State;
  explicit Rank(State& state) : state_(state) {}

 private:
  State& state_;
};

}  // namespace lockstep::testing
