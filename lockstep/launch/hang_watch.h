// SPDX-License-Identifier: BSD-3-Clause
// Notices that the members of an elastic job stand still, or that a newcomer does not join, and
// kills those that keep the others waiting.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "lockstep/core/deadline.h"
#include "lockstep/launch/local_ranks.h"

namespace lockstep {

// How far a member has got (ElasticBoard::progress()).
using ProgressOfMembers = std::map<int, std::int64_t>;

class HangWatch {
 public:
  // With a timeout of 0, nobody hangs.
  explicit HangWatch(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  bool is_on() const { return timeout_.count() > 0; }
  // How often to look, at most `longest`.
  std::chrono::milliseconds poll_interval(std::chrono::milliseconds longest) const;

  // Whether none of these members has made progress for the timeout, which begins anew whenever
  // one has, and with restart().
  bool stand_still(const ProgressOfMembers& progress);
  void restart() { quiet_.reset(); }

  // The newcomer is started now.
  void add_newcomer(int member) { lobby_[member] = Clock::now(); }
  // The first members of this launch can train: newcomers do what they did until now, beside ranks
  // that keep the cores busy. Only the first call counts, and nobody is late before.
  void note_set_up();
  // Kills newcomers that should have joined by now. `waits` tells whether one is still to join;
  // `process_of` returns its process, or nullptr if it has not been started yet.
  void kill_late(const std::function<bool(int member)>& waits,
                 const std::function<LocalRanks::Rank*(int member)>& process_of);

  // The launcher and its ranks were stopped for a while: all get their time anew.
  void forget_time();

  // For a member that keeps the others waiting.
  void kill_hanging(LocalRanks::Rank& rank) const;

 private:
  using Clock = std::chrono::steady_clock;

  // How long a newcomer may take.
  Clock::duration longest_lobby() const;

  const std::chrono::milliseconds timeout_;
  ProgressOfMembers last_progress_;
  // When the members hang, unless one makes progress.
  std::optional<Deadline> quiet_;
  const Clock::time_point began_ = Clock::now();
  // How long the first members took to set up.
  std::optional<Clock::duration> set_up_;
  // When each newcomer that has not joined was started.
  std::map<int, Clock::time_point> lobby_;
};

}  // namespace lockstep
