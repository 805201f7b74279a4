// SPDX-License-Identifier: BSD-3-Clause
// The errors of a group, and the absent ranks that they name.
#include "lockstep/comm/core/group_state.h"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep {

std::string describe(const Absent& absent, const std::function<std::string(int rank)>& name) {
  std::vector<std::string> parts;
  for (const auto& [last_wait, ranks] : absent) {
    std::vector<std::string> names;
    for (const int rank : ranks) names.push_back(name(rank));
    parts.push_back(fmt::format("{}", fmt::join(names, ", ")));
    if (!last_wait.empty()) parts.back() += ", last seen waiting in " + last_wait;
  }
  return fmt::format("{}", fmt::join(parts, ", and "));
}

namespace {

std::string in_words(PeerEnd how, const std::string& reason) {
  switch (how) {
    case PeerEnd::died:
      return " died before it made or finished this call; its output and the launcher's say how";
    case PeerEnd::connection_lost:
      return ": its connection was lost before it made or finished this call: it died, or the "
             "network failed; its output and the launcher's say which";
    case PeerEnd::failed:
      return " failed before it made or finished this call: " + reason;
    case PeerEnd::left:
      break;
  }
  // The program may have ended because of an error that it caught itself.
  if (reason.empty()) {
    return " left the group before it made this call: its program ended, or makes fewer calls than "
           "this rank; its output may say why";
  }
  return fmt::format(" left the group while this call was under way ({})", reason);
}

}  // namespace

GroupState::GroupState(std::string backend, const Membership& membership, std::vector<pid_t> pids,
                       Name name)
    : backend_(std::move(backend)),
      rank_(membership.rank),
      size_(membership.world_size),
      name_(std::move(name)),
      losses_(membership, std::move(pids)) {}

std::string GroupState::where(const Call& call) const {
  return where_in(backend_, title(call), rank_, size_);
}

TimeoutError GroupState::timed_out(const Call& call, const Deadline& deadline,
                                   const Absent& absent) const {
  const double seconds = static_cast<double>(deadline.span().count()) / 1000;
  if (absent.empty()) {
    return TimeoutError(
        fmt::format("{}waited {:.1f} s, though every rank has made this call; check whether the "
                    "network between them carries data (to wait longer, raise the group's timeout)",
                    where(call), seconds));
  }
  return TimeoutError(
      fmt::format(
          "{}waited {:.1f} s for {}; it is stopped or stuck, or makes other calls than this "
          "rank (to wait longer, raise the group's timeout)",
          where(call), seconds, describe(absent, name_)),
      absent.begin()->second.front());
}

std::exception_ptr GroupState::ended_by_peer(const Call& call, const AbortNotice& notice) const {
  return error_of(notice, fmt::format("{}{} ended the group: {}", where(call), name_(notice.rank),
                                      notice.reason));
}

PeerLost GroupState::peer_gone(const Call& call, int peer, PeerEnd how,
                               const std::string& reason) const {
  return PeerLost(peer, where(call) + name_(peer) + in_words(how, reason),
                  how == PeerEnd::left ? PeerLost::How::left : PeerLost::How::failed);
}

PeerLost GroupState::ended_here(const Call& call, const std::string& reason) const {
  return PeerLost(rank_, where(call) + "this rank ended the group: " + reason);
}

BackendError lacks_memory(const std::string& where, std::string_view who) {
  return BackendError(fmt::format(
      "{}{} does not have enough memory for it; its own error has the figures", where, who));
}

void GroupState::check_votes(const Call& call, std::span<const std::uint8_t> votes,
                             const std::string& refusal) const {
  if (!refusal.empty()) throw BackendError(where(call) + refusal);
  for (int peer = 0; peer < size_; ++peer) {
    if (votes[static_cast<std::size_t>(peer)] != 0) continue;
    throw lacks_memory(where(call), name_(peer));
  }
}

}  // namespace lockstep
