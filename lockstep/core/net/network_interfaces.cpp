// SPDX-License-Identifier: BSD-3-Clause
// Lists this machine's interfaces, and matches them against the values that Gloo and NCCL accept.
#include "lockstep/core/net/network_interfaces.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <ranges>
#include <sstream>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/system_error.h"

namespace lockstep {
namespace {

// One address of an interface that is up.
struct InterfaceAddress {
  std::string interface;
  std::string address;
  int family;
  bool loopback;
  // An IPv6 address that means something only together with an interface.
  bool link_local;
};

InterfaceAddress described(const ifaddrs& one) {
  const sockaddr& address = *one.ifa_addr;
  const bool six = address.sa_family == AF_INET6;
  const socklen_t length = six ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  char number[NI_MAXHOST] = {};
  ::getnameinfo(&address, length, number, sizeof number, nullptr, 0, NI_NUMERICHOST);
  const bool link_local =
      six && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  return {one.ifa_name, number, address.sa_family, (one.ifa_flags & IFF_LOOPBACK) != 0, link_local};
}

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    throw BackendError(fmt::format("cannot list the network interfaces: {}", reason_of(errno)));
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> interfaces(first, ::freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    const int family = one->ifa_addr->sa_family;
    if (family == AF_INET || family == AF_INET6) found.push_back(described(*one));
  }
  return found;
}

// "^=eth0,eth1"
struct InterfaceList {
  bool excludes = false;
  bool whole = false;
  std::vector<std::string> names;

  explicit InterfaceList(const std::string& value)
      : excludes(value.starts_with('^')), whole(value.starts_with('=') || value.starts_with("^=")) {
    std::istringstream list(value.substr((excludes ? 1 : 0) + (whole ? 1 : 0)));
    for (std::string name; std::getline(list, name, ',');) {
      if (!name.empty()) names.push_back(name);
    }
  }

  // The place in the list of the first name that fits; the list's size if none does.
  std::size_t place_of(const std::string& interface, bool whole_names) const {
    const auto fits = [&](const std::string& name) {
      return whole_names ? interface == name : interface.starts_with(name);
    };
    return static_cast<std::size_t>(std::ranges::find_if(names, fits) - names.begin());
  }
  bool has(const std::string& interface, bool whole_names) const {
    return place_of(interface, whole_names) < names.size();
  }
};

}  // namespace

bool gloo_uses(const std::string& value, const std::string& name) {
  const InterfaceList list(value);
  return list.has(name, list.whole || !list.excludes) != list.excludes;
}

bool nccl_uses(const std::string& value, const std::string& name) {
  const InterfaceList list(value);
  return list.has(name, list.whole) != list.excludes;
}

void check_interfaces(const ErrorContext& context, const char* variable, UsesInterface uses) {
  const auto value = environment(variable);
  if (!value) return;
  // With the first address of each.
  std::map<std::string, std::string> there;
  for (const auto& one : interface_addresses()) {
    if (uses(*value, one.interface)) return;
    there.emplace(one.interface, fmt::format("{} ({})", one.interface, one.address));
  }
  throw UsageError(
      context,
      fmt::format("{}={} names no network interface of this machine that is up and has an address. "
                  "There are: {}",
                  variable, *value, fmt::join(std::views::values(there), ", ")),
      "set it to one of them, or unset it");
}

std::string gloo_address(const std::string& value, const std::string& own_host) {
  const InterfaceList list(value);
  const bool six = own_host.find(':') != std::string::npos;
  std::vector<InterfaceAddress> usable = interface_addresses();
  std::erase_if(usable, [&](const auto& one) { return !gloo_uses(value, one.interface); });
  const auto rank = [&](const InterfaceAddress& one) {
    const std::size_t place = list.excludes ? 0 : list.place_of(one.interface, true);
    return std::tuple(place, one.address != own_host, one.loopback, (one.family == AF_INET6) != six,
                      one.link_local);
  };
  const auto best = std::ranges::min_element(usable, {}, rank);
  if (best != usable.end()) return best->address;
  throw BackendError(ErrorDetails{
      .cause = fmt::format(
          "GLOO_SOCKET_IFNAME={}: its network interfaces are gone or have no address any more",
          value),
      .remedy = "`ip address` lists them"});
}

std::optional<std::string> address_for_others() try {
  std::vector<InterfaceAddress> usable = interface_addresses();
  std::erase_if(usable, [](const auto& one) { return one.loopback || one.link_local; });
  const auto best = std::ranges::find(usable, AF_INET, &InterfaceAddress::family);
  if (best != usable.end()) return best->address;
  return usable.empty() ? std::nullopt : std::optional(usable.front().address);
} catch (const BackendError&) {
  return std::nullopt;
}

}  // namespace lockstep
