// SPDX-License-Identifier: BSD-3-Clause
// Compares members' progress between two looks.
#include "lockstep/launch/hang_watch.h"

#include <algorithm>

#include <fmt/format.h>
#include <signal.h>

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kShortestHangPollInterval{10};
// A newcomer has as long to join as the hang timeout, and so many times what the first members took
// to begin to train.
constexpr int kSetUpTimes = 2;

double seconds_of(std::chrono::duration<double> span) {
  return span.count();
}

}  // namespace

std::chrono::milliseconds HangWatch::poll_interval(std::chrono::milliseconds longest) const {
  if (!is_on()) return longest;
  return std::min(longest, std::max(timeout_ / 4, kShortestHangPollInterval));
}

bool HangWatch::stand_still(const ProgressOfMembers& progress) {
  if (!is_on()) return false;
  if (quiet_ && progress == last_progress_) return quiet_->passed();
  last_progress_ = progress;
  quiet_ = Deadline::after(timeout_);
  return false;
}

void HangWatch::note_set_up() {
  if (!set_up_) set_up_ = Clock::now() - began_;
}

HangWatch::Clock::duration HangWatch::longest_lobby() const {
  return timeout_ + kSetUpTimes * set_up_.value();
}

void HangWatch::kill_late(const std::function<bool(int member)>& waits,
                          const std::function<LocalRanks::Rank*(int member)>& process_of) {
  if (!is_on() || !set_up_) return;
  std::erase_if(lobby_, [&](const auto& entry) {
    const auto& [member, since] = entry;
    if (!waits(member)) return true;
    LocalRanks::Rank* const rank = process_of(member);
    if (rank == nullptr || Clock::now() - since < longest_lobby()) return false;
    rank->end = fmt::format("killed by the launcher, since it had not joined within {:.1f} s",
                            seconds_of(longest_lobby()));
    rank->process.signal(SIGKILL);
    return true;
  });
}

void HangWatch::forget_time() {
  restart();
  for (auto& [member, since] : lobby_) since = Clock::now();
}

void HangWatch::kill_hanging(LocalRanks::Rank& rank) const {
  rank.end = fmt::format("killed by the launcher, since it made no progress for {:.1f} s",
                         seconds_of(timeout_));
  rank.process.signal(SIGKILL);
}

}  // namespace lockstep
