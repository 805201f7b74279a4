// SPDX-License-Identifier: BSD-3-Clause
// How a rank waits for others while they join: it looks whether all of them are alive.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep {

// Throws PeerLost if the process of a rank is known to have ended; of several, rank 0 of the job
// last: without its store the others end as well.
void check_all_live(const Membership& membership);

// "rank 3 did not join within 30.0 s; see whether ...", with more behind it.
TimeoutError did_not_join(const std::vector<int>& ranks, const Deadline& deadline,
                          const std::string& more = "");

// How long the first wait for a rank lasts, before a look whether all of them live.
constexpr std::chrono::milliseconds kFirstTurn(250);
// And a later one: where the store may be on another machine, longer, since a wait that is shorter
// than the way there and back never succeeds.
std::chrono::milliseconds longest_turn(const Membership& membership);

// Calls wait(deadline), which throws TimeoutError at its deadline, again and again, and after each
// call looks whether all ranks live.
template <class Wait>
auto watched_wait(const Membership& membership, const Deadline& deadline,
                  std::chrono::milliseconds longest, const Wait& wait) {
  for (std::chrono::milliseconds turn = kFirstTurn;; turn = std::min(2 * turn, longest)) {
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
