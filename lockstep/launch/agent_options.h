// SPDX-License-Identifier: BSD-3-Clause
// The parameters and the result of a launch (agent.h).
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/environment.h"
#include "lockstep/core/net/tcp_socket.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/elastic_options.h"
#include "lockstep/launch/rank_environment.h"
#include "lockstep/launch/rank_reports.h"
#include "lockstep/rendezvous/store.h"

namespace lockstep {

// All ranks' output on one stream of this process.
struct MergedOutput {
  OutputStream stream = OutputStream::out;
  // Begins each line.
  std::string prefix{};
};

// A deadline for each rank: within `span` of its start it must set the store's key `key`, followed
// by its number. A rank that misses it, or ends with code 0 without it, fails the job; a newcomer
// of an elastic job that misses it is only killed.
struct Arrival {
  std::string key;
  std::chrono::milliseconds span{};
  // The reported causes: for a rank that has not set the key in time, and for one that ended with
  // code 0 without setting it.
  std::string late;
  std::string never;
};

// One of several attempts at a job (run_with_restarts()).
struct JobAttempt {
  // From 0; the number of restarts before it.
  int number = 0;
  int max_restarts = 0;
  // The same in all attempts. If empty, the launch chooses one.
  std::string run_id{};
};

// Several hosts of an elastic job, each with its own launch of as many ranks. They meet in etcd,
// and ElasticOptions count the ranks of all of them.
struct ClusterOptions {
  // Where etcd serves its clients.
  Endpoint etcd{};
  // Names the job there.
  std::string job{};
  // How many hosts begin it. More may join later.
  int hosts = 2;
  // An address of this host that the others can reach. If empty, the one that reaches etcd.
  std::string address{};
  // Authenticates ranks; may be empty.
  std::string secret{};
};

// Members have initializers so that g++ does not warn about those that a caller omits.
struct AgentOptions {
  // The program, found in PATH as by a shell, and its arguments.
  std::vector<std::string> program{};
  // On this machine.
  int ranks = 1;
  // If empty, this machine is the only one.
  std::optional<Node> node{};
  JobAttempt attempt{};
  // If empty, the job ends when a rank fails.
  std::optional<ElasticOptions> elastic{};
  // If empty, all ranks of an elastic job are on this machine.
  std::optional<ClusterOptions> cluster{};
  // The values of OMP_NUM_THREADS and OPENBLAS_NUM_THREADS. If empty, each rank gets an equal share
  // of this process's cores, unless the environment sets the variables.
  std::optional<int> threads{};
  // Further variables, which override this process's and the ranks' own.
  EnvironmentVariables environment{};

  // Ranks' output goes to this process's standard output and error in lines that begin with
  // "[rank 2] ", in colour on a terminal unless NO_COLOR is set. A line without an end, such as a
  // progress bar or a prompt, appears within half a second; another rank's output then ends it.
  // With a status line or on_line, it appears once it has ended. A slow reader gets all of it and
  // slows the ranks down. If the ranks fail or are stopped, it has half a second for the rest,
  // which is then dropped. A reader that goes away ends the job.
  bool prefix = true;
  // Replaces the prefix and merges both streams.
  std::optional<MergedOutput> merged{};
  // Not with on_line.
  std::optional<StatusLine> status{};
  // Only these ranks' output is shown; if empty, all.
  std::optional<std::vector<int>> shown_ranks{};
  // Gets every line instead of the standard streams. Must not throw or block: meanwhile no signal
  // and no rank's end is noticed.
  LineSink on_line{};
  // Gets the agent's own warnings, instead of lines on standard error: more ranks than cores before
  // the ranks start; others after they have ended and their output is written, unless run_agent
  // throws. May block or throw; run_agent then throws the same.
  std::function<void(const std::string&)> on_warning{};
  // A folder for rank_0.log and so on, with both streams. Created if it does not exist.
  std::string log_dir{};

  // Time from SIGTERM to SIGKILL after a rank has failed, and for processes that ranks leave
  // behind.
  std::chrono::milliseconds stop_grace{500};
  // Time from passing on the signal that told this process to stop, until SIGKILL.
  std::chrono::milliseconds interrupt_grace{10000};
  std::optional<Arrival> arrival{};
  // The keeper ends processes that ranks leave behind. If the keeper is killed and this is set,
  // this process adopts the remaining ones and ends them; set it only in a program without other
  // children. If it is not set, processes that have left their rank's group or session stay.
  bool end_orphans = false;
};

struct AgentResult {
  // 128 + signal if this process was told to stop; else the first failure's exit code, or 1 if that
  // is 0; else 1 if output was lost; else 0.
  int exit_code = 0;
  // The signal that told this process to stop, and that it passed on to the ranks; SIGPIPE if the
  // reader of standard output went away.
  int signal = 0;
  // Whether this process or another machine's was told to stop, also if a rank had failed before.
  bool told_to_stop = false;
  // The rank that failed first. If a rank failed because it lost another, as its groups tell the
  // launcher, this is the lost rank, even if that ended with code 0, was stopped, or runs on
  // another machine. If several failed at once, one that a signal killed counts as first.
  std::optional<RankFailure> failure;
  // The ranks that an elastic job has lost, without those of the failure, as text: "member 1 (rank
  // 1, pid 123) was lost: exit code 3". The first one comes first.
  std::vector<std::string> losses;
  // The numbers of the ranks that have finished. In an elastic job, members in the order of their
  // ranks; without those that were lost, have left, or have never trained with others.
  std::vector<int> finished;
  // Why some of the ranks' lines are missing on standard output or in a log file: "cannot write
  // standard output: No space left on device". Empty if none are missing.
  std::string output_error;
  // The values that the ranks left in the store.
  StoreValues store;
};

// Called in a forked rank; the rank ends when it returns or throws. A body that executes a program
// may pass on the pipe for the rank's last words (run_rank).
using RankBody = std::function<void(int rank, const UniqueFd& last_words)>;

}  // namespace lockstep
