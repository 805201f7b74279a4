// SPDX-License-Identifier: BSD-3-Clause
// The launch of one host of an elastic job that has several: starts and replaces this host's
// members, tells etcd about them, and opens the generations that the agents agree on there.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/launch/agent_options.h"
#include "lockstep/launch/elastic_control.h"
#include "lockstep/launch/etcd_membership.h"
#include "lockstep/launch/hang_watch.h"
#include "lockstep/launch/leaving_members.h"
#include "lockstep/launch/local_ranks.h"
#include "lockstep/rendezvous/elastic_board.h"
#include "lockstep/rendezvous/local_store_server.h"
#include "lockstep/rendezvous/tcp_store.h"

namespace lockstep {

class ClusterLaunch final : public ElasticControl {
 public:
  // `first` are the members that EtcdMembership::meet() has returned. BackendError if the board
  // cannot be made.
  ClusterLaunch(const ElasticOptions& options, const ClusterOptions& cluster,
                const std::vector<int>& first, EtcdMembership& membership, LocalStoreServer& store,
                LocalRanks& local_ranks);

  EnvironmentVariables variables(const PlacedRank& start) const override;
  int member(int rank) const override { return members_[static_cast<std::size_t>(rank)].number; }
  void begin() override;
  std::vector<std::string> take_changes() override;
  int descriptor() const override { return membership_.descriptor(); }
  std::chrono::milliseconds sleep_time(std::chrono::milliseconds longest) const override;
  bool expects_ranks() const override;
  void require_place() override;
  std::optional<int> fatal() const override { return fatal_; }
  std::string failure_elsewhere() const override { return failure_elsewhere_; }
  std::optional<LastRank> last_rank(int rank) const override;
  void forget_quiet_time() override;
  void leave() override { membership_.leave(); }

 private:
  // A rank of this host.
  struct Member {
    int number = 0;
    int place = 0;
    // Whether etcd has been told that it has completed the training, and that it has ended.
    bool complete = false;
    bool ended = false;
    // Ended by this launch, so that its end says nothing.
    bool dismissed = false;
    std::optional<LastRank> last{};
  };

  void take_completions();
  void take_ends(std::vector<std::string>& lines);
  void take_end(int rank, std::vector<std::string>& lines);
  void take_requests();
  void take_news(std::vector<std::string>& lines);
  void describe(const ClusterJob& before, std::vector<std::string>& lines) const;
  void start_newcomers(std::vector<std::string>& lines);
  void end_untrained();
  void kill_dismissed(std::vector<std::string>& lines);
  // Kills those that keep the ranks of all hosts waiting.
  void look_for_hangs();
  void kill_late_newcomers();
  void tell();
  void open_generation();

  // The process of a member of this host; nullptr if the keeper has not started it yet.
  LocalRanks::Rank* process_of(const Member& member) const;
  const Member& member_of(int number) const;
  // How far the members have got for whom the others wait.
  ProgressOfMembers progress() const;
  // Whether it runs, and has not begun to train.
  bool sets_up(const Member& member) const;
  bool has_joined(int number) const { return store_.value(join_key(number)).has_value(); }
  bool is_newcomer(const Member& member) const;
  int free_place() const;
  // Whether this host's members in the generation have met the others in it.
  bool trains() const;

  const ElasticOptions options_;
  const ClusterOptions cluster_;
  EtcdMembership& membership_;
  LocalStoreServer& store_;
  LocalRanks& local_ranks_;
  const std::string board_path_;
  ElasticBoard board_;
  // The members that were ranks of the first generation; a host that came later has none.
  const std::vector<int> founders_;
  const std::size_t first_members_;
  // By rank.
  std::vector<Member> members_;
  ClusterJob job_;
  int opened_ = -1;
  LeavingMembers leaving_;
  HangWatch hang_watch_;
  // Whether the members of this host stand still.
  bool stand_still_ = false;
  int replacements_;
  // Lost members of this host whose end, with a newcomer's beginning, is not in etcd yet.
  std::set<int> unsettled_;
  std::optional<int> last_lost_;
  std::optional<int> fatal_;
  std::string failure_elsewhere_;
  HostRecord told_;
  std::optional<ServedStore> served_;
};

}  // namespace lockstep
