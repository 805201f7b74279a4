// SPDX-License-Identifier: BSD-3-Clause
// Follows the members from generation to generation.
#include "lockstep/launch/elastic_members.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/rendezvous/elastic_board.h"

namespace lockstep {

ElasticMembers::ElasticMembers(int ranks, int least, int replacements)
    : first_members_(ranks),
      wanted_(ranks),
      least_(least),
      replacements_(replacements),
      next_member_(ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    generation_.members.push_back(rank);
    places_[rank] = rank;
  }
}

void ElasticMembers::complete(int member) {
  if (std::erase(generation_.members, member) == 0) return;
  completed_.insert(member);
  ++finished_;
}

ElasticChange ElasticMembers::take_ends(const std::vector<MemberEnd>& ends,
                                        const std::function<bool(int)>& has_trained) {
  ElasticChange change;
  const std::vector<int> before = generation_.members;
  remove_ended(ends, change);
  if (finished_ > 0) end_untrained(has_trained, change);
  const auto train = static_cast<int>(generation_.members.size());
  const auto had_rank = [&](int member) { return std::ranges::count(before, member) > 0; };
  const auto lost = std::ranges::find_if(change.lost, had_rank);
  change.opens = lost != change.lost.end();
  if (change.opens && !change.fatal && (train == 0 || train + finished_ < least_)) {
    change.fatal = *lost;
  }
  if (change.fatal) {
    change.opens = false;
    return change;
  }
  if (change.opens) ++generation_.number;
  if (finished_ == 0) start_replacements(change);
  return change;
}

void ElasticMembers::remove_ended(const std::vector<MemberEnd>& ends, ElasticChange& change) {
  for (const MemberEnd& end : ends) {
    const bool was_newcomer = newcomers_.erase(end.member) > 0;
    // A newcomer that has finished alone keeps its place: another one would do the same.
    if (!was_newcomer || !end.success) places_.erase(end.member);
    if (dismissed_.erase(end.member) > 0) continue;
    if (end.success && !was_newcomer) finishers_.insert(end.member);
    if (completed_.erase(end.member) > 0) {
      if (end.success) continue;
      change.lost.push_back(end.member);
      if (!change.fatal) change.fatal = end.member;
      continue;
    }
    std::erase(generation_.members, end.member);
    if (!end.success) {
      change.lost.push_back(end.member);
      if (end.would_repeat && !change.fatal) change.fatal = end.member;
    } else if (!was_newcomer) {
      ++finished_;
    }
  }
}

void ElasticMembers::end_untrained(const std::function<bool(int)>& has_trained,
                                   ElasticChange& change) {
  const auto is_untrained = [&](int member) {
    return member >= first_members_ && !has_trained(member);
  };
  std::vector<int> untrained(newcomers_.begin(), newcomers_.end());
  std::ranges::copy_if(generation_.members, std::back_inserter(untrained), is_untrained);
  for (const int member : untrained) {
    newcomers_.erase(member);
    std::erase(generation_.members, member);
    dismissed_.insert(member);
    change.to_end.push_back(member);
  }
}

bool ElasticMembers::has_place() const {
  return static_cast<int>(places_.size() - dismissed_.size()) < wanted_ &&
         next_member_ < ElasticBoard::kMostMembers;
}

void ElasticMembers::start_newcomer(ElasticChange& change) {
  const PlacedRank start{.rank = next_member_++, .place = free_place()};
  places_[start.rank] = start.place;
  newcomers_.insert(start.rank);
  change.to_start.push_back(start);
}

void ElasticMembers::start_replacements(ElasticChange& change) {
  for (; has_place() && replacements_ > 0; --replacements_) start_newcomer(change);
}

// A member that leaves may still be there while another one takes its place.
int ElasticMembers::free_place() const {
  int place = 0;
  const auto is_taken = [&](const auto& entry) {
    return entry.second == place && !dismissed_.contains(entry.first);
  };
  while (std::ranges::any_of(places_, is_taken)) ++place;
  return place;
}

bool ElasticMembers::admit(const std::vector<int>& joined) {
  if (finished_ > 0 || joined.empty()) return false;
  for (const int member : joined) {
    newcomers_.erase(member);
    generation_.members.push_back(member);
  }
  ++generation_.number;
  return true;
}

void ElasticMembers::dismiss_newcomer(ElasticChange& change) {
  const int last = *newcomers_.rbegin();
  newcomers_.erase(last);
  dismissed_.insert(last);
  change.to_end.push_back(last);
}

ElasticChange ElasticMembers::resize(int ranks) {
  ElasticChange change;
  wanted_ = ranks;
  while (has_place()) start_newcomer(change);
  std::vector<int>& members = generation_.members;
  while (!newcomers_.empty() && static_cast<int>(members.size() + newcomers_.size()) > wanted_) {
    dismiss_newcomer(change);
  }
  if (static_cast<int>(members.size()) <= wanted_) return change;
  const auto first_leaving = members.begin() + wanted_;
  change.leaving.assign(first_leaving, members.end());
  members.erase(first_leaving, members.end());
  dismissed_.insert(change.leaving.begin(), change.leaving.end());
  ++generation_.number;
  change.opens = true;
  return change;
}

std::string members_in_words(const std::vector<int>& members) {
  return fmt::format("member{} {}", members.size() == 1 ? "" : "s", fmt::join(members, ", "));
}

std::string ranks_in_words(int ranks) {
  return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s");
}

std::string who_goes_on(std::size_t ranks) {
  return ranks == 1 ? "1 rank goes on" : fmt::format("{} ranks go on", ranks);
}

std::vector<int> hanging_members(const std::vector<MemberProgress>& members) {
  std::vector<int> hanging;
  for (const MemberProgress& one : members) {
    if (one.stopped) hanging.push_back(one.member);
  }
  if (!hanging.empty() || members.empty()) return hanging;
  const auto [least, most] = std::ranges::minmax(members, {}, &MemberProgress::progress);
  if (least.progress == most.progress) return {members.back().member};
  for (const MemberProgress& one : members) {
    if (one.progress == least.progress) hanging.push_back(one.member);
  }
  return hanging;
}

}  // namespace lockstep
