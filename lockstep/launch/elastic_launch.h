// SPDX-License-Identifier: BSD-3-Clause
// The launcher's side of an elastic job: follows its members, opens generations, starts and ends
// members as ElasticMembers decides.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/environment.h"
#include "lockstep/launch/agent_options.h"
#include "lockstep/launch/elastic_members.h"
#include "lockstep/launch/local_ranks.h"
#include "lockstep/rendezvous/elastic_board.h"
#include "lockstep/rendezvous/local_store_server.h"

namespace lockstep {

// For an event loop; never blocks. Members are the ranks of LocalRanks, with the same numbers.
class ElasticLaunch {
 public:
  // Makes the board in the store's folder, and opens the first generation, with `ranks` members.
  // BackendError if the board cannot be made.
  ElasticLaunch(const ElasticOptions& options, int ranks, LocalStoreServer& store,
                LocalRanks& local_ranks);

  // The variables that tell a member what ElasticJob knows.
  EnvironmentVariables variables(const PlacedRank& start) const;

  // Takes the ends that LocalRanks has noticed and what members have told, and acts on it. Returns
  // a line for the user about each event.
  std::vector<std::string> take_changes();
  // How long the event loop may sleep until the next call, at most `longest`: members note their
  // progress without waking it.
  std::chrono::milliseconds sleep_time(std::chrono::milliseconds longest) const;
  // The lost member without which the job cannot go on. Nothing happens any more then.
  std::optional<int> fatal() const { return fatal_; }
  // The newest rank that the member has had; for a newcomer that has had none, its number.
  int last_rank(int member) const;

  // The launcher and its ranks were stopped for a while.
  void forget_quiet_time() { quiet_.reset(); }

 private:
  void take_completions();
  void take_ends(std::vector<std::string>& lines);
  void take_joins(std::vector<std::string>& lines);
  void kill_dismissed();
  void kill_hanging();
  void open_generation();

  LocalRanks::Rank& rank_of(int member) {
    return local_ranks_.all()[static_cast<std::size_t>(member)];
  }
  std::map<int, std::int64_t> progress() const;
  // Newcomers that have said that they can train.
  std::vector<int> joined() const;
  std::string describe(const ElasticChange& change, int lost);

  const ElasticOptions options_;
  const int first_members_;
  LocalStoreServer& store_;
  LocalRanks& local_ranks_;
  const std::string board_path_;
  ElasticBoard board_;
  ElasticMembers members_;
  // For each member, whether its end has been taken.
  std::vector<bool> ended_;
  // Members that are to be killed once they have been started.
  std::vector<int> dismissed_;
  std::map<int, int> last_ranks_;
  std::optional<int> fatal_;
  // The members' progress when the generation was opened.
  std::map<int, std::int64_t> progress_at_opening_;
  // Their progress when any of them last made some, and when they hang if none makes more.
  std::map<int, std::int64_t> last_progress_;
  std::optional<Deadline> quiet_;
};

}  // namespace lockstep
