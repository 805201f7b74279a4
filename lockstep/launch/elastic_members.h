// SPDX-License-Identifier: BSD-3-Clause
// Decides who belongs to an elastic job: which generation follows when members end or join, which
// members are replaced, and when the job has failed. Without processes and clocks, as culprit.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/launch/rank_process.h"
#include "lockstep/rendezvous/elastic_job.h"

namespace lockstep {

// A member that has ended.
struct MemberEnd {
  int member = 0;
  // With exit code 0: it has finished.
  bool success = false;
  // A replacement would end in the same way: wrong_command().
  bool would_repeat = false;
};

// What follows from ends, or from a wish for another number of ranks.
struct ElasticChange {
  // The members that were lost, in the order of their ends.
  std::vector<int> lost = {};
  // Members that leave at the end of a step, since fewer ranks are wanted.
  std::vector<int> leaving = {};
  // A new generation() is to be opened.
  bool opens = false;
  // Newcomers to be started: PlacedRank::rank is their number as members.
  std::vector<PlacedRank> to_start = {};
  // Members to be killed, since they can have no part in the training any more.
  std::vector<int> to_end = {};
  // The lost member without which the job cannot go on.
  std::optional<int> fatal = {};
};

class ElasticMembers {
 public:
  // The job begins with `ranks` members and wants so many until resize(). It fails when fewer than
  // `least` train, and starts at most `replacements` newcomers in place of lost members.
  ElasticMembers(int ranks, int least, int replacements);

  // Without members that have ended, or completed the training, since it was opened.
  const Generation& generation() const { return generation_; }
  // Those that were started and have not been admitted.
  const std::set<int>& newcomers() const { return newcomers_; }
  // How many lost members may still be replaced.
  int replacements_left() const { return replacements_; }
  // How many ranks the job wants to have.
  int wanted() const { return wanted_; }
  // Whether fewer run, newcomers included, and another one may be started.
  bool has_place() const;
  // Members whose processes have ended with code 0 after the training, in the order of their ranks.
  const std::set<int>& finishers() const { return finishers_; }
  // Whether a member has finished or completed the training.
  bool any_finished() const { return finished_ > 0; }

  // The member has completed the training, and does something else until its process ends. As one
  // that has finished, it has no part in later generations; but if it fails, the job does.
  void complete(int member);

  // Members that have ended since the last call; those that ended together in one call, so that no
  // generation is opened with one of them. has_trained() tells whether a member has noted a step.
  //
  // Once a member has finished, the training is over or nearly so: nobody is replaced, and
  // newcomers that have not trained are to end. No generation is opened without it, since others
  // may still complete what it has completed; the next one, after a loss, is without it.
  ElasticChange take_ends(const std::vector<MemberEnd>& ends,
                          const std::function<bool(int)>& has_trained);

  // Opens a generation with these newcomers, in this order behind the members that are there. False
  // if a member has finished: nothing changes then.
  bool admit(const std::vector<int>& joined);

  // From now on, so many ranks are wanted, at least `least`. Starts newcomers, which are no
  // replacements; or ends newcomers that have not joined, then opens a generation without the
  // highest ranks. The ends of all these say nothing. Not after a member has finished.
  ElasticChange resize(int ranks);

 private:
  void remove_ended(const std::vector<MemberEnd>& ends, ElasticChange& change);
  void start_newcomer(ElasticChange& change);
  void start_replacements(ElasticChange& change);
  void dismiss_newcomer(ElasticChange& change);
  void end_untrained(const std::function<bool(int)>& has_trained, ElasticChange& change);
  int free_place() const;

  const int first_members_;
  int wanted_;
  const int least_;
  int replacements_;
  Generation generation_;
  std::set<int> newcomers_{};
  std::set<int> completed_{};
  std::set<int> finishers_{};
  // Members that run and were told to end, or to leave: their ends say nothing.
  std::set<int> dismissed_{};
  // The place of each member that runs.
  std::map<int, int> places_{};
  int finished_ = 0;
  int next_member_;
};

// "member 4", "members 4, 5"
std::string members_in_words(const std::vector<int>& members);
// "1 rank", "2 ranks"
std::string ranks_in_words(int ranks);
// "1 rank goes on", "2 ranks go on"
std::string who_goes_on(std::size_t ranks);

// How far a member has got (ElasticBoard::progress()).
struct MemberProgress {
  int member = 0;
  std::int64_t progress = -1;
  // By a signal.
  bool stopped = false;

  bool operator==(const MemberProgress&) const = default;
};

// Of members none of which has made progress for too long: those that keep the others waiting.
// These are the ones that a signal has stopped; else the ones that have got least far. If all have
// got equally far, the last one, since ending one frees the others from what they wait for.
std::vector<int> hanging_members(const std::vector<MemberProgress>& members);

}  // namespace lockstep
