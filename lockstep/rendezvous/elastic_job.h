// SPDX-License-Identifier: BSD-3-Clause
// Public. A rank's side of an elastic job (`lockstep run --elastic`, or spawn), in which ranks may
// be lost and replaced while the others go on: docs/elastic.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep {

class ElasticBoard;

// One membership of an elastic job. A member has the same number as long as it lives, and no other
// member ever gets that number. Its rank may change with each generation.
struct Generation {
  // 0 for the members that the job starts with.
  int number = 0;
  // In the order of their ranks. Members keep their order, and new ones come last.
  std::vector<int> members = {};
  // Where they meet if they are on several hosts, as "host:port"; empty on one.
  std::string store = {};

  // nullopt if it is no member of this generation.
  std::optional<int> rank_of(int member) const;

  bool operator==(const Generation&) const = default;
};

// What the launcher of an elastic job tells this process, and what this process tells the launcher.
// Thread-safe.
class ElasticJob {
 public:
  // The same object at each call; null unless the launcher of an elastic job started this process.
  // UsageError if the launcher's variables are malformed, BackendError if its board cannot be
  // mapped.
  static std::shared_ptr<ElasticJob> of_this_process();

  ElasticJob(const ElasticJob&) = delete;
  ElasticJob& operator=(const ElasticJob&) = delete;

  int member() const { return member_; }
  // Less than most_ranks(), and different from those of the other members that train: which GPU and
  // cores of the machine this member uses.
  int place() const { return place_; }
  // The most ranks that the job may ever have: MAX of --elastic.
  int most_ranks() const { return most_ranks_; }
  // Whether this process was started to replace a lost rank or to enlarge the job. It belongs to no
  // generation until it has called join().
  bool is_newcomer() const { return newcomer_; }
  // Whether this is a newcomer that has not called join() yet.
  bool in_lobby() const { return newcomer_ && !joined_; }

  // Tells the launcher that this newcomer can train now. The launcher opens a generation with it
  // once all members have noted a step. Does nothing on a founding member. BackendError or
  // TimeoutError if the launcher does not answer.
  void join();

  // Blocks until there is a generation with this member that is newer than number `after` (-1:
  // any), and returns the newest one. nullopt if the job goes on without this member, since fewer
  // ranks are wanted (`lockstep resize`): end the process then, with code 0. TimeoutError at the
  // deadline, BackendError if the launcher is gone. UsageError if this newcomer has not called
  // join().
  std::optional<Generation> wait_for_generation(int after, const Deadline& deadline);

  // This member's place in the generation, for init_process_group(). Waits on its store end with
  // PeerLost as soon as a newer generation is open, so that ranks do not wait for one that has just
  // been lost. UsageError if this process is no member of the generation.
  Membership membership(const Generation& generation) const;

  // Whether the generation that wait_for_generation() returned last is one of several hosts. A host
  // that is lost without a word, as by a power cut, is noticed by the others after some seconds;
  // until then, ranks may see errors of the network.
  bool on_several_hosts() const noexcept { return on_several_hosts_; }

  // Whether a generation newer than this number is open. One atomic load.
  bool wants_change(int generation) const noexcept;

  // Tells the launcher how many steps this member has completed: in each generation before its
  // first step, when it has the state of the others, and then after each step. The launcher finds
  // hanging ranks by it (--hang-timeout), and admits newcomers once all members of the generation
  // have called it after membership(). Two atomic stores.
  void note_step(std::int64_t step) noexcept;
  // Tells the launcher that this member has computed its part of the step after the last one noted,
  // or of what comes before that step, and now waits for the other ranks. Of ranks that stand
  // still, the launcher takes those for the hanging ones that have not got this far. One atomic
  // store.
  void note_waiting() noexcept;
  // Tells the launcher that this member waits no longer. Needed after a wait outside of a step, as
  // in an evaluation; note_step() says the same. One atomic store.
  void note_going_on() noexcept;
  // Tells the launcher that this member has completed the training: it has no part in later
  // generations, is not taken for hanging, and if it fails from now on, the job fails, since nobody
  // repeats what it does after the training. One atomic store.
  void note_end() noexcept;
  // For a member that no generation has any more, since fewer ranks are wanted: the launcher ends
  // this process, by SIGTERM first. Does not return. Error if the process still runs at the
  // deadline.
  [[noreturn]] void leave(const Deadline& deadline);

 private:
  ElasticJob(int member, int place, int most_ranks, bool newcomer, const std::string& board,
             std::string store);

  const int member_;
  const int place_;
  const int most_ranks_;
  const bool newcomer_;
  std::atomic<bool> joined_ = false;
  // Whether a generation has had this member.
  std::atomic<bool> admitted_;
  std::atomic<bool> on_several_hosts_ = false;
  // The one that membership() was last asked for.
  mutable std::atomic<int> generation_ = 0;
  // Shared with the stores of memberships.
  const std::shared_ptr<ElasticBoard> board_;
  // The path of the launcher's store.
  const std::string store_;
};

}  // namespace lockstep
