// SPDX-License-Identifier: BSD-3-Clause
// What the event loop of a launch asks about the members of an elastic job: on one host
// (elastic_launch.h), or on several (cluster_launch.h).
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/environment.h"
#include "lockstep/launch/rank_process.h"

namespace lockstep {

// Ranks are numbered as in LocalRanks. Never blocks, except for leave().
class ElasticControl {
 public:
  virtual ~ElasticControl() = default;

  // The variables that tell a member what ElasticJob knows.
  virtual EnvironmentVariables variables(const PlacedRank& start) const = 0;
  // The rank's number as a member.
  virtual int member(int rank) const = 0;
  // The keeper has been forked: from now on there may be threads.
  virtual void begin() {}

  // Takes the ends that LocalRanks has noticed and what members have told, and acts on it. Returns
  // a line for the user about each event.
  virtual std::vector<std::string> take_changes() = 0;
  // Readable when take_changes() has something else to do; -1 if there is nothing else.
  virtual int descriptor() const { return -1; }
  // How long the event loop may sleep until the next call, at most `longest`: members note their
  // progress without waking it.
  virtual std::chrono::milliseconds sleep_time(std::chrono::milliseconds longest) const = 0;
  // Whether ranks are about to be started, although none may run now.
  virtual bool expects_ranks() const { return false; }
  // Kills the ranks and throws BackendError if they may not go on, since other hosts may go on
  // without them. Also while the job ends.
  virtual void require_place() {}

  // The lost rank without which the job, or this host, cannot go on. Nothing happens any more then.
  virtual std::optional<int> fatal() const = 0;
  // Why the job cannot go on, if that is the fault of none of these ranks; empty if it can.
  virtual std::string failure_elsewhere() const { return {}; }
  // AgentResult::losses and finished. Empty on several hosts, of which each knows its own only.
  virtual std::vector<std::string> losses() const { return {}; }
  virtual std::vector<int> finishers() const { return {}; }
  // Where a rank was in the newest generation that had it; nullopt for a newcomer that has not been
  // in any.
  struct LastRank {
    int rank = 0;
    int size = 0;
  };
  virtual std::optional<LastRank> last_rank(int rank) const = 0;

  // The launcher and its ranks were stopped for a while: members get their time anew.
  virtual void forget_quiet_time() {}
  // All ranks have ended.
  virtual void leave() {}
};

}  // namespace lockstep
