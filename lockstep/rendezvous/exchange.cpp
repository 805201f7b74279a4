// SPDX-License-Identifier: BSD-3-Clause
// Each rank sets its text under a numbered key, and reads the texts of all ranks.
#include "lockstep/rendezvous/exchange.h"

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/core/rethrow.h"
#include "lockstep/rendezvous/watched_wait.h"

namespace lockstep {

std::vector<std::string> exchange(const Membership& membership, std::string_view topic,
                                  const std::string& text, const Deadline& deadline) {
  Store& store = *membership.store;
  const std::string where =
      fmt::format("joining, rank {} of {}: ", membership.rank, membership.world_size);
  const std::string prefix = fmt::format("{}/{}", topic, membership.generation);
  const auto time = store.add(fmt::format("{}/{}/times", prefix, membership.rank), 1);
  store.set(fmt::format("{}/{}/{}", prefix, time, membership.rank), text);
  std::vector<std::string> texts;
  for (int rank = 0; rank < membership.world_size; ++rank) {
    const std::string key = fmt::format("{}/{}/{}", prefix, time, rank);
    try {
      texts.push_back(watched_get(membership, key, deadline));
    } catch (const PeerLost&) {
      rethrow_with(where);
    } catch (const StoreSilent&) {
      throw;
    } catch (const TimeoutError&) {
      throw TimeoutError(where + did_not_join({rank}, deadline).what(), rank);
    }
  }
  return texts;
}

}  // namespace lockstep
