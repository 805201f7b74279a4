// SPDX-License-Identifier: BSD-3-Clause
// Waits for other ranks while they join, and checks meanwhile that all of them are alive.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep {

// Throws PeerLost if a rank's process is known to have ended. If several have, rank 0 of the job is
// named last, since the others end too without its store.
void check_all_live(const Membership& membership);

// Where the errors of a rank occur that joins the others: "joining, rank 1 of 4".
ErrorContext joining_context(const Membership& membership);

// What to do about a rank that did not join.
inline constexpr std::string_view kFindWhy =
    "check whether it was started, and whether it failed before it joined";
// "rank 3 did not join within 30.0 s; check whether ...", followed by `more`.
TimeoutError did_not_join(const std::vector<int>& ranks, const Deadline& deadline,
                          const std::string& more = "");

// The length of the first wait for a rank, after which all ranks are checked.
constexpr std::chrono::milliseconds kFirstWait(250);
// The longest later wait. It is longer if the store may be on another machine, since a wait shorter
// than the round trip would never succeed.
std::chrono::milliseconds longest_wait(const Membership& membership);

// Repeats wait(deadline), which throws TimeoutError at its deadline, and after each call checks
// that all ranks are alive.
template <class Wait>
auto watched_wait(const Membership& membership, const Deadline& deadline,
                  std::chrono::milliseconds longest, const Wait& wait) {
  for (std::chrono::milliseconds turn = kFirstWait;; turn = std::min(2 * turn, longest)) {
    const bool last = deadline.remaining() <= turn;
    try {
      return wait(last ? deadline : Deadline::after(turn));
    } catch (const StoreSilent&) {
      check_all_live(membership);
      throw;
    } catch (const TimeoutError&) {
      check_all_live(membership);
      if (last) throw;
    } catch (const StoreLost&) {
      check_all_live(membership);
      throw;
    }
  }
}

// The value of the key in the membership's store.
std::string watched_get(const Membership& membership, const std::string& key,
                        const Deadline& deadline);

}  // namespace lockstep
