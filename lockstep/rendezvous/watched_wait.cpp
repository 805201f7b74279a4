// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/rendezvous/watched_wait.h"

#include <thread>

#include <fmt/format.h>

namespace lockstep {

void check_all_live(const Membership& membership) {
  const auto ended = membership.first_ended();
  if (!ended) return;
  // The others could take this rank's end for the cause.
  std::this_thread::sleep_for(kFirstTurn);
  throw PeerLost(*ended, fmt::format("rank {} (pid {}) died while the ranks connected", *ended,
                                     membership.process(*ended).pid));
}

}  // namespace lockstep
