// SPDX-License-Identifier: BSD-3-Clause
// The event loop of one launch: everything that run_agent() does after checking its options. It
// leaves the processes to LocalRanks, their output to JobOutput, which rank failed to
// FailureDecision, which one has not begun to ArrivalWatch, and the members of an elastic job to
// ElasticControl.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/launch/agent_options.h"
#include "lockstep/launch/arrival_watch.h"
#include "lockstep/launch/elastic_control.h"
#include "lockstep/launch/etcd_membership.h"
#include "lockstep/launch/failure_decision.h"
#include "lockstep/launch/job_deadlines.h"
#include "lockstep/launch/job_output.h"
#include "lockstep/launch/local_ranks.h"
#include "lockstep/launch/other_agents.h"
#include "lockstep/launch/rank_environment.h"
#include "lockstep/launch/signal_watch.h"
#include "lockstep/rendezvous/local_store_server.h"

namespace lockstep {

// Single-threaded: sleeps in poll() until a rank ends or writes, the store gets a request, a signal
// arrives or a deadline passes.
class RankWatch {
 public:
  // Prints `warnings` or adds its own to them, as JobOutput does. `others` are the agents of other
  // machines; null if there are none, or if they do not tell each other anything.
  RankWatch(const AgentOptions& options, const RankBody& body, SignalWatch& signals,
            OtherAgents* others, std::vector<std::string>& warnings);
  // For one host of an elastic job of several, whose ranks are these members.
  RankWatch(const AgentOptions& options, const RankBody& body, SignalWatch& signals,
            EtcdMembership& membership, const std::vector<int>& members,
            std::vector<std::string>& warnings);
  // Ends all ranks and removes the status line in any case.
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  AgentResult run();

 private:
  RankWatch(const AgentOptions& options, const RankBody& body, SignalWatch& signals,
            OtherAgents* others, int first_rank, std::vector<std::string>& warnings);

  void start();
  LaunchFacts facts_of_launch() const;
  EnvironmentVariables variables_of(const LaunchFacts& facts, const PlacedRank& start) const;
  // Connects the output of ranks that have been started since the last call.
  void connect_started();
  void warn_of_missing_terminal();
  void warn_of_starved_store();

  // Whether the job failed or was told to stop.
  bool stopping() const { return failure_ || signal_ != 0 || ended_by_others_; }

  void wait();
  void take_signals();
  void take_signal(int signal);
  void take_changes();
  // These end the job: once a rank has failed and its cause is known, or will not become known
  // soon; and if a rank has not arrived.
  void take_failure();
  void take_elastic_changes();
  void take_absence();
  // Ends the job if the agents of other machines say so.
  void take_order();
  void take_deadlines();

  void interrupt(int signal);
  // Stops the ranks and this process until SIGCONT.
  void suspend();
  void resume();
  // Asks all ranks to end; they are killed after the grace.
  void stop(int signal, std::chrono::milliseconds grace);
  // Does so because a rank has failed.
  void stop_after_failure();
  void kill_all();

  // Waits for a slow reader, but not for long if the job failed or was stopped.
  void write_all_output();
  RankFailure describe_failure();
  void name_failure(RankFailure& failure) const;
  std::vector<int> finished() const;
  AgentResult make_result();

  const AgentOptions& options_;
  const RankBody& body_;
  // The job's number of this machine's first rank.
  const int first_rank_;

  CoreShares cores_;
  SignalWatch& signals_;
  OtherAgents* const others_;
  LocalStoreServer store_;
  const int master_port_;
  JobOutput output_;
  LocalRanks ranks_;
  // Null if the job is not elastic.
  std::unique_ptr<ElasticControl> elastic_;
  // Empty if ranks need not say that they have begun.
  std::optional<ArrivalWatch> arrivals_;

  JobDeadlines deadlines_;
  bool starvation_reported_ = false;
  // How many ranks have their output connected.
  std::size_t connected_ = 0;
  // The rank that failed first, once that is decided.
  std::optional<FailureDecision> failure_;
  // The signal that told this process to stop, or 0.
  int signal_ = 0;
  // Whether such a signal came, also after a failure.
  bool told_to_stop_ = false;
  // Whether ranks of another machine failed before any of these.
  bool ended_by_others_ = false;
  // The notices that this process got and passed on.
  std::set<int> notices_;
};

}  // namespace lockstep
