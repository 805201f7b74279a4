// SPDX-License-Identifier: BSD-3-Clause
// The event loop of one launch: everything that run_agent() does after checking its options.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/core_shares.h"
#include "lockstep/launch/culprit.h"
#include "lockstep/launch/memory_kills.h"
#include "lockstep/launch/orphans.h"
#include "lockstep/launch/rank_keeper.h"
#include "lockstep/launch/rank_output.h"
#include "lockstep/launch/rank_process.h"
#include "lockstep/launch/signal_watch.h"
#include "lockstep/rendezvous/local_store_server.h"

namespace lockstep {

// Single-threaded: sleeps in poll() until a rank ends or writes, the store gets a request, a signal
// arrives or a deadline passes.
class RankWatch {
 public:
  // Adds its warnings to `warnings` if options.on_warning is set. Otherwise it prints those in
  // `warnings` and its own.
  RankWatch(const AgentOptions& options, const RankBody& body, std::vector<std::string>& warnings);
  // Ends all ranks and removes the status line in any case.
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  AgentResult run();

 private:
  // The job's number of this machine's first rank.
  int first_rank() const { return options_.node ? options_.node->number * options_.ranks : 0; }
  struct Rank {
    RankProcess process;
    RankOutput output;
    bool ended = false;
    // How it ended, or that it was late, as text.
    std::string end{};
    bool log_lost = false;
    // The round of the loop that noticed its end.
    int noticed = 0;
  };

  void start();
  // Whether the ranks' output appears on a terminal.
  bool on_terminal() const;
  EnvironmentVariables variables_of(int rank) const;
  void warn(const std::string& warning);
  void print_earlier_warnings();
  void warn_of_late_output();
  void warn_of_starved_store();
  void update_status();
  void leave_to_parent();
  RankOutput::Sink make_sink(int rank);
  // Whether the beginning of a line is shown before the rank has ended the line.
  bool shows_unfinished() const { return !options_.on_line && !shows_status_; }

  void wait();
  void take_signals();
  void take_signal(int signal);
  void take_changes();
  // False if there was nothing to read.
  bool read_some(Rank& rank, OutputStream stream);
  void read_outputs();
  void warn_of_lost_log(Rank& rank);
  void take_ends();
  // Ends the job once a rank has failed and its cause is known, or will not become known soon.
  void take_failure();
  RankEnd end_of(Rank& rank) const;
  void take_deadlines();
  void take_arrivals();

  void signal_all(int signal);
  void interrupt(int signal);
  // Stops the ranks and this process until SIGCONT. Meanwhile no deadline passes.
  void suspend();
  void resume();
  // Lets the deadlines go on that suspend() has halted.
  void restart_deadlines();
  // Asks all ranks to end; they are killed after the grace.
  void stop(int signal, std::chrono::milliseconds grace);
  void kill_all();

  bool running() const;
  void end_leftovers();
  void drain();
  // Waits for a slow reader, but not for long if the job failed or was stopped.
  void flush_console();
  RankFailure failure_of(const Culprit& culprit);
  void fill_in_result();

  const AgentOptions& options_;
  const RankBody& body_;
  std::vector<std::string>& warnings_;
  AgentResult result_;

  MemoryKills memory_kills_;
  CoreShares cores_;
  SignalWatch signals_;
  std::optional<AdoptsOrphans> orphans_;
  LocalStoreServer store_;
  const int master_port_;
  const bool shows_status_;
  Console console_;
  std::optional<RankKeeper> keeper_;
  std::vector<Rank> ranks_;

  // The last value of options_.status->key, and the width for which it was rendered.
  std::optional<std::string> status_;
  int status_columns_ = 0;
  bool starvation_reported_ = false;
  int looks_ = 0;
  Deadline look_for_kills_at_ = Deadline::after({});
  std::optional<Deadline> decide_at_;
  // The rank that failed first, and what was known about its end at that time.
  std::optional<Culprit> culprit_;
  RankEnd culprits_end_;
  std::optional<Deadline> arrive_by_;
  std::optional<Deadline> repeat_after_;
  std::optional<Deadline> kill_at_;
  std::optional<Deadline> give_up_at_;
  std::optional<Deadline> discard_at_;
  // The notices that this process got and passed on.
  std::set<int> notices_;
  // While the ranks are suspended: the deadlines that were set, and what was left of each.
  std::vector<std::pair<std::optional<Deadline>*, std::chrono::milliseconds>> halted_;
};

}  // namespace lockstep
