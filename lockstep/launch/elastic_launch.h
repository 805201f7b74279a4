// SPDX-License-Identifier: BSD-3-Clause
// The launcher's side of an elastic job: follows its members, opens generations, starts and ends
// members as ElasticMembers decides, and answers `lockstep resize`.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/environment.h"
#include "lockstep/launch/agent_options.h"
#include "lockstep/launch/elastic_control.h"
#include "lockstep/launch/elastic_members.h"
#include "lockstep/launch/hang_watch.h"
#include "lockstep/launch/leaving_members.h"
#include "lockstep/launch/local_ranks.h"
#include "lockstep/rendezvous/elastic_board.h"
#include "lockstep/rendezvous/local_store_server.h"

namespace lockstep {

// Members are the ranks of LocalRanks, with the same numbers.
class ElasticLaunch final : public ElasticControl {
 public:
  // Makes the board in the store's folder, and opens the first generation, with `ranks` members.
  // BackendError if the board cannot be made.
  ElasticLaunch(const ElasticOptions& options, int ranks, LocalStoreServer& store,
                LocalRanks& local_ranks);

  EnvironmentVariables variables(const PlacedRank& start) const override;
  int member(int rank) const override { return rank; }
  std::vector<std::string> take_changes() override;
  std::chrono::milliseconds sleep_time(std::chrono::milliseconds longest) const override;
  std::optional<int> fatal() const override { return fatal_; }
  std::vector<std::string> losses() const override;
  std::vector<int> finishers() const override {
    return {members_.finishers().begin(), members_.finishers().end()};
  }
  std::optional<LastRank> last_rank(int member) const override;
  void forget_quiet_time() override;

 private:
  void take_completions();
  void take_ends(std::vector<std::string>& lines);
  void take_joins(std::vector<std::string>& lines);
  void take_requests();
  void resize(std::vector<std::string>& lines);
  void kill_dismissed();
  void kill_hanging();
  void kill_late_newcomers();
  void start(const ElasticChange& change);
  void open_generation();

  LocalRanks::Rank& rank_of(int member) const {
    return local_ranks_.all()[static_cast<std::size_t>(member)];
  }
  ProgressOfMembers progress() const;
  // Whether all members have met in their generation.
  bool members_train() const;
  bool any_first_member_sets_up() const;
  bool has_joined(int member) const;
  // Newcomers that have said that they can train.
  std::vector<int> joined() const;
  std::string describe_idle_newcomer(const LocalRanks::Rank& rank) const;
  std::string describe_loss(int lost) const;
  // What follows from the losses; empty unless `lost` is the last of them.
  std::string describe_consequences(const ElasticChange& change, int lost) const;
  std::string describe_resize(const ElasticChange& change, int before) const;

  const ElasticOptions options_;
  const int first_members_;
  // The most ranks that the job may have.
  const int most_;
  LocalStoreServer& store_;
  LocalRanks& local_ranks_;
  const std::string board_path_;
  ElasticBoard board_;
  ElasticMembers members_;
  // For each member, whether its end has been taken.
  std::vector<bool> ended_;
  // Members that are to be killed once they have been started.
  std::vector<int> dismissed_;
  LeavingMembers leaving_;
  HangWatch hang_watch_;
  std::map<int, LastRank> last_ranks_;
  std::optional<int> fatal_;
  // Each lost member, and how it was lost, as text.
  std::vector<std::pair<int, std::string>> losses_;
  // The number of ranks that a request asks for, until it is followed.
  std::optional<int> wish_;
};

}  // namespace lockstep
