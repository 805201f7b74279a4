// SPDX-License-Identifier: BSD-3-Clause
// Matches this machine's interfaces against the values that Gloo and NCCL accept.
#include "lockstep/core/network_interfaces.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <sstream>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/system_error.h"

namespace lockstep {
namespace {

socklen_t length_of(const sockaddr& address) {
  return address.sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

// The numeric first address of each interface that is up.
std::map<std::string, std::string> addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    throw BackendError(fmt::format("cannot list the network interfaces: {}", reason_of(errno)));
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> interfaces(first, ::freeifaddrs);
  std::map<std::string, std::string> found;
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    const sockaddr& address = *one->ifa_addr;
    if (address.sa_family != AF_INET && address.sa_family != AF_INET6) continue;
    char number[NI_MAXHOST] = {};
    ::getnameinfo(&address, length_of(address), number, sizeof number, nullptr, 0, NI_NUMERICHOST);
    found.emplace(one->ifa_name, number);
  }
  return found;
}

}  // namespace

bool gloo_uses(const std::string& value, const std::string& name) {
  return name == value;
}

bool nccl_uses(const std::string& value, const std::string& name) {
  const bool excludes = value.starts_with('^');
  const bool whole = value.starts_with('=') || value.starts_with("^=");
  std::istringstream list(value.substr((excludes ? 1 : 0) + (whole ? 1 : 0)));
  bool listed = false;
  for (std::string entry; std::getline(list, entry, ',');) {
    listed |= whole ? name == entry : name.starts_with(entry);
  }
  return listed != excludes;
}

void check_interfaces(const std::string& where, const char* variable, UsesInterface uses) {
  const auto value = environment(variable);
  if (!value) return;
  std::vector<std::string> there;
  for (const auto& [name, address] : addresses()) {
    if (uses(*value, name)) return;
    there.push_back(fmt::format("{} ({})", name, address));
  }
  throw UsageError(
      fmt::format("{}{}={} names no network interface of this machine that is up and has an "
                  "address. There are: {}. Set it to one of them, or unset it",
                  where, variable, *value, fmt::join(there, ", ")));
}

}  // namespace lockstep
