// SPDX-License-Identifier: BSD-3-Clause
// The errors of a group, and the absent ranks that they name.
#include "lockstep/comm/core/group_state.h"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep {

std::exception_ptr error_of(const AbortNotice& notice, ErrorDetails details) {
  details.peer = notice.lost_rank;
  switch (notice.cause) {
    case AbortCause::timed_out:
      return std::make_exception_ptr(TimeoutError(std::move(details)));
    case AbortCause::mismatched:
      return std::make_exception_ptr(UsageError(std::move(details)));
    case AbortCause::lost:
      return std::make_exception_ptr(PeerLost(std::move(details)));
    case AbortCause::left:
      return std::make_exception_ptr(PeerLost(std::move(details), PeerLost::How::left));
    case AbortCause::requested:
    case AbortCause::none:
      break;
  }
  details.peer = notice.rank;
  return std::make_exception_ptr(PeerLost(std::move(details)));
}

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

// What became of the peer `name`, and where to look for the reason.
ErrorDetails describe_end(const std::string& name, PeerEnd how, const std::string& reason) {
  switch (how) {
    case PeerEnd::died:
      return {.cause = name + " died before it made or finished this call",
              .remedy = "its output and the launcher's say how"};
    case PeerEnd::connection_lost:
      return {
          .cause = name +
                   ": its connection was lost before it made or finished this call: it died, or "
                   "the network failed",
          .remedy = "its output and the launcher's say which"};
    case PeerEnd::failed:
      return {.cause = name + " failed before it made or finished this call: " + reason};
    case PeerEnd::left:
      break;
  }
  // The program may have ended because of an error that it caught itself.
  if (reason.empty()) {
    return {.cause = name +
                     " left the group before it made this call: its program ended, or makes fewer "
                     "calls than this rank",
            .remedy = "its output may say why"};
  }
  return {.cause =
              fmt::format("{} left the group while this call was under way ({})", name, reason)};
}

}  // namespace

GroupState::GroupState(std::string backend, const Membership& membership, std::vector<pid_t> pids,
                       Name name)
    : backend_(std::move(backend)),
      rank_(membership.rank),
      size_(membership.world_size),
      name_(std::move(name)),
      losses_(membership, std::move(pids)) {}

ErrorContext GroupState::context(const Call& call) const {
  return context_of(backend_, call, rank_, size_);
}

TimeoutError GroupState::timed_out(const Call& call, const Deadline& deadline,
                                   const Absent& absent) const {
  const double seconds = static_cast<double>(deadline.span().count()) / 1000;
  if (absent.empty()) {
    return TimeoutError(
        context(call),
        fmt::format("waited {:.1f} s, though every rank has made this call", seconds),
        "check whether the network between them carries data (to wait longer, raise "
        "the group's timeout)");
  }
  return TimeoutError(ErrorDetails{
      .cause = fmt::format("waited {:.1f} s for {}", seconds, describe(absent, name_)),
      .remedy = "it is stopped, stuck, or making different calls (to wait longer, raise "
                "the group's timeout)",
      .peer = absent.begin()->second.front(),
      .contexts = {context(call)}});
}

std::exception_ptr GroupState::ended_by_peer(const Call& call, const AbortNotice& notice) const {
  return error_of(
      notice, {.cause = fmt::format("{} ended the group: {}", name_(notice.rank), notice.reason),
               .contexts = {context(call)}});
}

PeerLost GroupState::peer_gone(const Call& call, int peer, PeerEnd how,
                               const std::string& reason) const {
  ErrorDetails details = describe_end(name_(peer), how, reason);
  details.peer = peer;
  details.contexts = {context(call)};
  return PeerLost(std::move(details),
                  how == PeerEnd::left ? PeerLost::How::left : PeerLost::How::failed);
}

PeerLost GroupState::ended_here(const Call& call, const std::string& reason) const {
  return PeerLost(ErrorDetails{
      .cause = "this rank ended the group: " + reason, .peer = rank_, .contexts = {context(call)}});
}

BackendError lacks_memory(const ErrorContext& context, std::string_view who) {
  return BackendError(context,
                      fmt::format("{} cannot allocate memory for its part of this tensor", who),
                      "its own error has the sizes");
}

void GroupState::check_votes(const Call& call, std::span<const std::uint8_t> votes,
                             const std::optional<BackendError>& refusal) const {
  if (refusal) throw BackendError(within(context(call), *refusal));
  for (int peer = 0; peer < size_; ++peer) {
    if (votes[static_cast<std::size_t>(peer)] != 0) continue;
    throw lacks_memory(context(call), name_(peer));
  }
}

}  // namespace lockstep
