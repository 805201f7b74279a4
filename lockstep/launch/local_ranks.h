// SPDX-License-Identifier: BSD-3-Clause
// The ranks of one launch on this machine: starts them through their keeper, follows their states,
// signals them, and ends them with all processes that they leave behind.
#pragma once

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <sys/types.h>

#include "lockstep/core/deadline.h"
#include "lockstep/launch/culprit.h"
#include "lockstep/launch/exit_status.h"
#include "lockstep/launch/keeper_client.h"
#include "lockstep/launch/orphans.h"
#include "lockstep/launch/rank_process.h"
#include "lockstep/rendezvous/local_store_server.h"

namespace lockstep {

// Ranks have the numbers 0 to ranks - 1 here, whatever their numbers in the job; further ones have
// the next numbers.
class LocalRanks {
 public:
  struct Rank {
    RankProcess process;
    // Whether take_ends() has noticed its end, and in which round.
    bool ended = false;
    int noticed = 0;
    // How it ended, or that it was late, as text.
    std::string end{};

    bool failed() const { return ended && !process.status()->success(); }
  };

  // `first_rank` is the job's number of rank 0 here. With `end_orphans`, this process adopts the
  // processes that a killed keeper leaves behind.
  LocalRanks(int first_rank, bool end_orphans);
  // Kills all ranks that remain.
  ~LocalRanks();
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;

  // Forks the keeper, as KeeperClient does.
  void fork_keeper(const KeeperConfig& config) { keeper_.emplace(config, memory_kills_); }
  // Between fork_keeper() and end().
  bool has_keeper() const { return keeper_.has_value(); }
  // Waits for the next rank to be started. BackendError as from KeeperClient::next_started().
  RankProcess& add_started();
  // Begins to start a further rank, whose number follows those of the others that were started.
  // take_changes() adds it to all() later; if it cannot be started, as one that has failed.
  void start(const PlacedRank& start) { keeper_->start(start); }

  // Readable when take_changes() has something to do.
  int descriptor() const { return keeper_->descriptor(); }
  // Takes what the keeper has reported. BackendError if the keeper was killed, and the ranks with
  // it.
  void take_changes();
  // Notices ranks that have ended since the last call; those noticed together ended in one round. A
  // rank that one of the `notices` killed, which this process has passed on, gets a hint.
  void take_ends(const std::set<int>& notices);
  // Notices kills by the kernel. Call it at least once a second; most calls do nothing.
  void look_for_memory_kills();

  std::vector<Rank>& all() { return ranks_; }
  const std::vector<Rank>& all() const { return ranks_; }
  bool running() const;
  // The rank's number in the job.
  int job_rank(const Rank& rank) const { return first_rank_ + rank.process.rank(); }
  // The end of each rank, with the loss that it has reported in the store.
  std::vector<RankEnd> ends(const LocalStoreServer& store) const;

  void signal(int signal);
  // Ends the remaining ranks and all that they leave behind, with SIGKILL after the grace, and the
  // keeper. Blocks meanwhile.
  void end(std::chrono::milliseconds grace);

 private:
  void add_failed(const StartFailed& failed);

  const int first_rank_;
  MemoryKills memory_kills_;
  Deadline look_for_kills_at_ = Deadline::after({});
  std::optional<AdoptsOrphans> orphans_;
  std::optional<KeeperClient> keeper_;
  std::vector<Rank> ranks_;
  int round_ = 0;
};

}  // namespace lockstep
