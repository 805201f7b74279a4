// SPDX-License-Identifier: BSD-3-Clause
// Reports ranks that die or give up while a transport connects.
#include "lockstep/comm/remote/joining.h"

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/comm/core/group_state.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"

namespace lockstep::remote {
namespace {

using namespace std::chrono_literals;

// The news of a rank's death may arrive this long after its connections ended.
constexpr auto kNewsDelay = 500ms;

AbortCause cause_of(const std::exception& error) {
  const bool late = dynamic_cast<const TimeoutError*>(&error) != nullptr;
  return late ? AbortCause::timed_out : AbortCause::requested;
}

// The rank that the error is about; -1 if it names none.
int rank_at_fault(const std::exception& error) {
  const auto* const late = dynamic_cast<const TimeoutError*>(&error);
  return late != nullptr ? late->rank() : -1;
}

}  // namespace

Joining::Joining(PeerMonitor& monitor, std::string_view backend, const Membership& membership)
    : monitor_(monitor),
      context_{.component = std::string(backend),
               .operation = "joining",
               .rank = membership.rank,
               .size = membership.world_size} {}

// Ranks that wait for the one at fault have not connected either: only a single one is known.
TimeoutError Joining::did_not_connect(const std::vector<int>& ranks, const Deadline& deadline,
                                      std::string_view other_end) const {
  return TimeoutError(ErrorDetails{
      .cause = fmt::format("rank {} did not connect within {:.1f} s", fmt::join(ranks, ", "),
                           deadline.span().count() / 1000.0),
      .remedy = fmt::format(
          "it is stopped or stuck, or the network carries nothing between it and {}", other_end),
      .peer = ranks.size() == 1 ? ranks.front() : -1,
      .contexts = {context_}});
}

void Joining::check() {
  monitor_.look();
  // An error after this news is not a failure to connect.
  if (monitor_.all_connected()) return;
  const auto& abort = monitor_.aborted();
  const auto lost = monitor_.lost();
  // The monitor's server soon loses a rank that gives up as well, but that rank has not died.
  if (lost && !(abort && abort->rank == *lost)) {
    throw PeerLost(ErrorDetails{
        .cause = monitor_.lost_while_joining(), .peer = *lost, .contexts = {context_}});
  }
  if (!abort) return;
  std::rethrow_exception(error_of(
      *abort, {.cause = fmt::format("{} could not connect: {}", name(abort->rank), abort->reason),
               .contexts = {context_}}));
}

void Joining::wait_for_all(const Deadline& deadline) {
  monitor_.say_connected();
  // The server's deadline may pass a little later than this rank's, and the server knows who is
  // late.
  const Deadline patience = Deadline::after(deadline.remaining() + 1s);
  while (true) {
    monitor_.wait_for_news();
    check();
    if (monitor_.all_connected()) return;
    if (monitor_.absent_ranks()) {
      throw did_not_connect(*monitor_.absent_ranks(), deadline, "another rank");
    }
    if (patience.passed()) {
      throw TimeoutError(
          context_,
          fmt::format("rank 0 did not report within {:.1f} s that all ranks had connected",
                      deadline.span().count() / 1000.0),
          "a rank is stopped or stuck, or was given a longer timeout");
    }
  }
}

void Joining::cannot_begin(const std::exception& error) {
  monitor_.tell(cause_of(error), rank_at_fault(error), -1, short_message(error));
  monitor_.flush();
}

void Joining::give_up(const std::exception& error) {
  const Deadline deadline = Deadline::after(kNewsDelay);
  do {
    check();
    std::this_thread::sleep_for(10ms);
  } while (!deadline.passed());
  cannot_begin(error);
}

}  // namespace lockstep::remote
