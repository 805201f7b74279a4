// SPDX-License-Identifier: BSD-3-Clause
// Each rank sets its text under a numbered key, and reads the texts of all ranks.
#include "lockstep/rendezvous/exchange.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/net/tcp_socket.h"
#include "lockstep/rendezvous/watched_wait.h"

namespace lockstep {

std::vector<std::string> exchange(const Membership& membership, std::string_view topic,
                                  const std::string& text, const Deadline& deadline) {
  Store& store = *membership.store;
  const ErrorContext context = joining_context(membership);
  const std::string prefix = fmt::format("{}/{}", topic, membership.generation);
  const auto time = store.add(fmt::format("{}/{}/times", prefix, membership.rank), 1);
  store.set(fmt::format("{}/{}/{}", prefix, time, membership.rank), text);
  std::vector<std::string> texts;
  for (int rank = 0; rank < membership.world_size; ++rank) {
    const std::string key = fmt::format("{}/{}/{}", prefix, time, rank);
    try {
      texts.push_back(watched_get(membership, key, deadline));
    } catch (const PeerLost&) {
      rethrow_within(context);
    } catch (const StoreSilent&) {
      throw;
    } catch (const TimeoutError&) {
      ErrorDetails details = did_not_join({rank}, deadline).details();
      details.contexts = {context};
      throw TimeoutError(std::move(details));
    }
  }
  return texts;
}

std::string this_host() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  if (boot.empty()) boot = host_name();
  // Ranks pass each other memory over Unix sockets, which end at a network namespace.
  std::array<char, 64> space{};
  if (::readlink("/proc/self/ns/net", space.data(), space.size() - 1) < 0) space[0] = '\0';
  return boot + " " + space.data();
}

HostMap map_hosts(const Membership& membership, const std::string& host, const Deadline& deadline) {
  HostMap map;
  std::vector<std::string> names;
  int rank = 0;
  for (auto& name : exchange(membership, "hosts", host, deadline)) {
    const auto found = std::ranges::find(names, name);
    const auto index = static_cast<std::size_t>(found - names.begin());
    if (found == names.end()) {
      names.push_back(std::move(name));
      map.emplace_back();
    }
    map[index].push_back(rank++);
  }
  return map;
}

}  // namespace lockstep
