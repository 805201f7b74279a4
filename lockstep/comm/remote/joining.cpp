// SPDX-License-Identifier: BSD-3-Clause
// Reports ranks that die or give up while a transport connects.
#include "lockstep/comm/remote/joining.h"

#include <chrono>
#include <thread>

#include <fmt/format.h>

#include "lockstep/comm/core/abort_notice.h"
#include "lockstep/comm/core/call.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"

namespace lockstep::remote {
namespace {

using namespace std::chrono_literals;

// How much later than the end of a rank's connections the news of its death may come.
constexpr auto kNewsDelay = 500ms;

AbortCause cause_of(const std::exception& error) {
  const bool late = dynamic_cast<const TimeoutError*>(&error) != nullptr;
  return late ? AbortCause::timed_out : AbortCause::requested;
}

}  // namespace

Joining::Joining(PeerMonitor& monitor, std::string_view backend, const Membership& membership)
    : monitor_(monitor),
      where_(where_in(backend, "joining", membership.rank, membership.world_size)) {}

void Joining::check() {
  monitor_.look();
  const auto& abort = monitor_.aborted();
  const auto lost = monitor_.lost();
  // The monitor's server soon loses a rank that gives up as well, but that rank has not died.
  if (lost && !(abort && abort->rank == *lost)) {
    throw PeerLost(*lost, where_ + monitor_.lost_while_joining());
  }
  if (!abort) return;
  // Ranks that have joined already may have compared calls. The reason is then bytes that only an
  // engine understands.
  const bool compared = abort->cause == AbortCause::mismatched && abort->lost_rank >= 0;
  std::rethrow_exception(error_of(
      *abort, fmt::format("{}{} {}", where_, name(abort->rank),
                          compared ? "ended the group, since its calls differ from another rank's"
                                   : "could not connect: " + abort->reason)));
}

void Joining::give_up(const std::exception& error) {
  const Deadline deadline = Deadline::after(kNewsDelay);
  do {
    check();
    std::this_thread::sleep_for(10ms);
  } while (!deadline.passed());
  monitor_.tell(cause_of(error), -1, -1, error.what());
  monitor_.flush();
}

}  // namespace lockstep::remote
