// SPDX-License-Identifier: BSD-3-Clause
// Checks ranks by their process identities, and formats messages about missing ranks.
#include "lockstep/rendezvous/watched_wait.h"

#include <optional>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep {
namespace {

[[noreturn]] void throw_died(const Membership& membership, int rank) {
  // Lets the other ranks look first, so that they do not blame this rank when it ends.
  std::this_thread::sleep_for(kFirstWait);
  throw PeerLost(rank, fmt::format("rank {} (pid {}) died while the ranks connected", rank,
                                   membership.process(rank).pid));
}

}  // namespace

void check_all_live(const Membership& membership) {
  std::optional<int> rank_0;
  for (int rank = 0; rank < membership.world_size; ++rank) {
    if (!membership.process(rank).has_ended()) continue;
    if (membership.job_rank(rank) != 0) throw_died(membership, rank);
    rank_0 = rank;
  }
  if (rank_0) throw_died(membership, *rank_0);
}

ErrorContext joining_context(const Membership& membership) {
  return {.operation = "joining", .rank = membership.rank, .size = membership.world_size};
}

TimeoutError did_not_join(const std::vector<int>& ranks, const Deadline& deadline,
                          const std::string& more) {
  return TimeoutError(
      ErrorDetails{.cause = fmt::format("rank {} did not join within {:.1f} s",
                                        fmt::join(ranks, ", "), deadline.span().count() / 1000.0),
                   .remedy = fmt::format("{}{}", kFindWhy, more),
                   .peer = ranks.empty() ? -1 : ranks.front()});
}

std::chrono::milliseconds longest_wait(const Membership& membership) {
  const std::string here = ProcessIdentity::own().machine;
  const auto is_here = [&](const ProcessIdentity& process) { return process.machine == here; };
  const bool all_here = !membership.processes.empty() && !here.empty() &&
                        std::ranges::all_of(membership.processes, is_here);
  return all_here ? kFirstWait : std::chrono::seconds(2);
}

std::string watched_get(const Membership& membership, const std::string& key,
                        const Deadline& deadline) {
  return watched_wait(membership, deadline, longest_wait(membership),
                      [&](const Deadline& turn) { return membership.store->get(key, turn); });
}

}  // namespace lockstep
