// SPDX-License-Identifier: BSD-3-Clause
// Starts local ranks, watches them until the last has ended, and leaves nothing of them behind.
// Follows torchrun: its environment variables, no restarts. On several machines each has an agent,
// and ranks see for themselves when those of another machine end.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/rank_environment.h"
#include "lockstep/launch/rank_output.h"
#include "lockstep/rendezvous/local_store_server.h"

namespace lockstep {

// All that ranks write, on one stream of this process.
struct MergedOutput {
  OutputStream stream = OutputStream::out;
  // With what each line begins.
  std::string prefix{};
};

// A deadline for each rank: within this span from its start it must set the store's key `key`
// followed by its number.
struct Arrival {
  std::string key;
  std::chrono::milliseconds span{};
  // The causes that are reported for a rank that has not done so: by then, and before it ended with
  // code 0.
  std::string late;
  std::string never;
};

// Members have initialisers so that g++ does not warn of those that a caller leaves out.
struct AgentOptions {
  // The program, found in PATH as a shell finds it, and its arguments.
  std::vector<std::string> program{};
  // On this machine.
  int ranks = 1;
  // Without it, this machine is the only one.
  std::optional<Node> node{};
  // Sets OMP_NUM_THREADS and OPENBLAS_NUM_THREADS. Without it they are this process's share of the
  // cores for each rank, where the environment does not set them.
  std::optional<int> threads{};
  // More variables, over those of this process and over the ranks' own.
  EnvironmentVariables environment{};

  // What ranks write goes to this process's standard output and error, by whole lines that begin
  // with "[rank 2] ", in colour on a terminal unless NO_COLOR is set. A slow reader gets all of it
  // and slows the ranks down, unless they fail or are stopped: then what is left after half a
  // second is dropped. One that goes away ends the job.
  bool prefix = true;
  // Lines look like this instead.
  std::optional<MergedOutput> merged{};
  // Only these ranks' output is shown; without it, all.
  std::optional<std::vector<int>> shown_ranks{};
  // Gets every line instead of the standard streams. Must not throw, and must not block: meanwhile
  // no signal and no rank's end is noticed.
  RankOutput::Sink on_line{};
  // A folder that gets rank_0.log and so on, with both streams. Made if it is not there.
  std::string log_dir{};

  // From SIGTERM to SIGKILL: when a rank has failed, and when this process was told to stop.
  std::chrono::milliseconds stop_grace{500};
  std::chrono::milliseconds interrupt_grace{10000};
  // A rank that misses it, or ends without it, counts as failed, and the job ends.
  std::optional<Arrival> arrival{};
  // The keeper ends processes that ranks leave behind. If the keeper is killed and this is set,
  // this process adopts the rest and ends them; set it only in a program that has no other
  // children. Without it, processes that have left their rank's group or session then stay.
  bool end_orphans = false;
};

struct RankFailure {
  // Among those of all machines.
  int rank;
  // 0 for a rank of another machine.
  pid_t pid;
  // As a shell would give it: 128 + signal, or the exit code, which may be 0; 1 if it did not end
  // by itself.
  int exit_code;
  // The signal that killed it, or 0.
  int signal;
  // In words: "exit code 3", "killed by signal 9 (SIGKILL), ...", what an exception said, "ended
  // with code 0 before the others; rank 0 reports: ...", "stopped by signal 19 (SIGSTOP); ...".
  std::string cause;
  // Of both streams, the newest last.
  std::vector<std::string> last_lines;
};

struct AgentResult {
  // 128 + signal if this process was told to stop; else the first failure's, 1 if that is 0; else 1
  // if output was lost; else 0.
  int exit_code = 0;
  // The signal that told this process to stop, and that the ranks were sent; SIGPIPE if whoever
  // read standard output went away.
  int signal = 0;
  // The rank that failed first. A rank that fails because it lost another one, as its groups tell
  // the launcher, does not count; the lost rank does, even if it ended with code 0, was stopped, or
  // runs on another machine. Of several at once, one that a signal killed counts as first.
  std::optional<RankFailure> failure;
  // Why some of the ranks' lines are not on standard output, or not in a log file: "cannot write
  // standard output: No space left on device". Empty if none was lost.
  std::string output_error;
  // What the ranks left in the store.
  LocalStoreServer::Values store;
};

// Blocks until all ranks have ended. Each rank has a process group of its own, reads from /dev/null
// and prints to a pseudo-terminal, so that its lines appear as it prints them; TERM is dumb in it
// unless its output goes on to a terminal. The ranks' parent is their keeper, a process between
// them and this one, which also ends processes that they leave behind. When a rank fails, the
// process groups of the others get SIGTERM, and SIGKILL after the grace; if it fails because it
// lost another rank, that one first has two seconds to end by itself. SIGINT, SIGTERM, SIGHUP and
// SIGQUIT go to all ranks, which then have the longer grace; a second signal kills them. If this
// process or the keeper is killed, the ranks die with it; a killed keeper is a BackendError. Far
// more ranks than cores get a warning on standard error. UsageError for impossible options;
// BackendError if ranks cannot be started. A program that cannot be executed is a failure of its
// rank, with exit code 127 or 126.
AgentResult run_agent(const AgentOptions& options);

// What a forked rank calls; the rank ends when it returns or throws. A body that executes a program
// may hand it the pipe for the rank's last words (run_rank).
using RankBody = std::function<void(int rank, const UniqueFd& last_words)>;

// The same for ranks that call a body; spawn() uses it.
AgentResult run_agent(const AgentOptions& options, const RankBody& body);

// What to tell the user: which rank failed first, how, and its last lines. Ends with a newline;
// empty if all went well. `ranks` are those of all machines.
std::string report(const AgentResult& result, int ranks);

}  // namespace lockstep
