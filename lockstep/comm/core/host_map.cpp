// SPDX-License-Identifier: BSD-3-Clause
// Identifies this host, and groups the ranks by their hosts.
#include "lockstep/comm/core/host_map.h"

#include <algorithm>
#include <array>
#include <fstream>

#include <unistd.h>

#include "lockstep/core/net/tcp_socket.h"
#include "lockstep/rendezvous/exchange.h"

namespace lockstep {

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
