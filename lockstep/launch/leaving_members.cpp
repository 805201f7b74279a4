// SPDX-License-Identifier: BSD-3-Clause
// Follows members from the wish for fewer ranks to their end.
#include "lockstep/launch/leaving_members.h"

#include <utility>

#include <fmt/format.h>
#include <signal.h>

namespace lockstep {
namespace {

// How long a member that has left may do something else before it ends.
constexpr std::chrono::seconds kLeaveGrace{10};

}  // namespace

std::vector<int> LeavingMembers::in_step() const {
  std::vector<int> members;
  for (const auto& [member, leaving] : leaving_) {
    const bool is_in_loop = !leaving.until && board_.progress(member) < ElasticBoard::kLeft;
    if (is_in_loop && !rank_of_(member).ended) members.push_back(member);
  }
  return members;
}

// One that has completed the training had no opportunity to leave, and the others may need it.
void LeavingMembers::end(bool others_go_on, std::vector<std::string>& lines) {
  for (auto& [member, leaving] : leaving_) {
    LocalRanks::Rank& rank = rank_of_(member);
    const std::int64_t progress = board_.progress(member);
    if (rank.ended || progress == ElasticBoard::kEnd) continue;
    const bool says_so = progress == ElasticBoard::kLeft;
    if (!leaving.until && (says_so || others_go_on)) leaving.until = Deadline::after(kLeaveGrace);
    if (says_so && !std::exchange(leaving.told, true)) {
      rank.process.signal(SIGTERM);
    }
    if (!leaving.until || !leaving.until->passed()) continue;
    rank.end = fmt::format("killed by the launcher, since it still ran {} s after it had left",
                           kLeaveGrace.count());
    rank.process.signal(SIGKILL);
  }
  std::erase_if(leaving_, [&](const auto& entry) {
    const LocalRanks::Rank& rank = rank_of_(entry.first);
    if (rank.failed() && !entry.second.told) {
      lines.push_back(fmt::format("member {} (pid {}) failed as it left: {}", entry.first,
                                  rank.process.pid(), rank.end));
    }
    return rank.ended;
  });
}

void LeavingMembers::forget_time() {
  for (auto& [member, leaving] : leaving_) leaving.until.reset();
}

}  // namespace lockstep
