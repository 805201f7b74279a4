// SPDX-License-Identifier: BSD-3-Clause
// Expects that a rank is lost, and that messages name it.
#include "comm/conformance/expect_lost.h"

#include "comm/conformance/expect_error.h"
#include <ATen/ATen.h>
#include <fmt/format.h>

namespace lockstep::testing {

std::string died_before(const TestedBackend& backend) {
  return backend.shares_memory ? "died before" : "(died|: its connection was lost) before";
}

std::string beginning(const TestedBackend& backend, const Rank& rank, std::string_view operation,
                      std::string_view origin) {
  return fmt::format("^\\[{}\\] {} #[0-9]+{}, rank {} of {}: ", backend.name, operation, origin,
                     rank.rank(), rank.size());
}

std::string beginning_of_ring(const TestedBackend& backend, const Rank& rank) {
  return fmt::format("(^all_reduce by a ring( \\(|, rank )|{})",
                     beginning(backend, rank, "all_reduce"));
}

void expect_lost(Rank& rank, ProcessGroup& group, int victim,
                 const std::vector<std::string>& patterns, const std::function<void()>& function) {
  using Clock = std::chrono::steady_clock;
  const PeerLost lost =
      error_of<PeerLost>(function, "the call that was under way", PeerLost(-1, ""));
  EXPECT_EQ(lost.rank(), victim) << lost.what();
  expect_message(lost.what(), patterns, "the call that was under way");
  const pid_t pid = rank.pid_of(victim);
  const std::string name =
      pid == 0 ? fmt::format("rank {}", victim) : fmt::format("rank {} \\(pid {}\\)", victim, pid);
  expect_message(lost.what(), {name}, "the call that was under way");
  const PeerLost again = error_of<PeerLost>([&] { group.all_reduce(at::ones({3})).wait(); },
                                            "the next call", PeerLost(-1, ""));
  EXPECT_EQ(again.rank(), victim) << again.what();
  const auto begin = Clock::now();
  error_of<PeerLost>([&] { group.empty({3}, at::kFloat); }, "empty()", PeerLost(-1, ""));
  EXPECT_LT(Clock::now() - begin, kLongBeforeTimeout);
}

void expect_soon(const Rank& rank, int victim) {
  EXPECT_LT(rank.since_end(victim), std::chrono::seconds(4));
  EXPECT_LT(rank.since_signal(victim), kLongBeforeTimeout);
}

std::vector<int> victims(int size) {
  return {0, size - 1};
}

}  // namespace lockstep::testing
