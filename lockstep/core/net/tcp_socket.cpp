// SPDX-License-Identifier: BSD-3-Clause
// Parses endpoints, resolves names, listens and connects over TCP, and chooses addresses that other
// machines can reach.
#include "lockstep/core/net/tcp_socket.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <vector>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lockstep/core/net/network_interfaces.h"
#include "lockstep/core/system_error.h"

namespace lockstep {
namespace {

bool is_ipv6(std::string_view text) {
  // "fe80::1%eth0" names the interface that leads to the address.
  const auto percent = text.find('%');
  if (percent != std::string_view::npos && percent + 1 == text.size()) return false;
  in6_addr address{};
  return ::inet_pton(AF_INET6, std::string(text.substr(0, percent)).c_str(), &address) == 1;
}

bool may_be_in_a_name(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
         c == '.' || c == '_';
}

constexpr std::chrono::milliseconds kNameTimeout = std::chrono::minutes(1);

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses resolve(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    throw BackendError(ErrorDetails{
        .cause = fmt::format("host \"{}\" is not known: {}", host, ::gai_strerror(error)),
        .remedy = "give a name or address that this machine knows (getent hosts NAME)"});
  }
  return {found, ::freeaddrinfo};
}

// Whether the host is an address, in any notation, rather than a name.
bool is_number(const std::string& host) try {
  resolve(host, 0, AI_NUMERICHOST);
  return true;
} catch (const BackendError&) {
  return false;
}

bool is_known(const std::string& host) try {
  resolve(host, 0, 0);
  return true;
} catch (const BackendError&) {
  return false;
}

Addresses resolve_in_time(const std::string& host, const Deadline& deadline) {
  const Deadline patience = Deadline::after(std::min(deadline.remaining(), kNameTimeout));
  while (true) {
    try {
      return resolve(host, 0, 0);
    } catch (const BackendError&) {
      if (patience.passed()) throw;
    }
    ::poll(nullptr, 0, 200);
  }
}

std::string no_socket(int error) {
  return "cannot make a socket: " + reason_of(error);
}

UniqueFd socket_for(const addrinfo& address) {
  UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw BackendError(no_socket(errno));
  return fd;
}

void set_option(int socket, int level, int name, int value) {
  ::setsockopt(socket, level, name, &value, sizeof value);
}

// Returns 0 or the error number.
int connect_once(int fd, const addrinfo& address, const Deadline& deadline) {
  if (::connect(fd, address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd entry{fd, POLLOUT, 0};
  while (::poll(&entry, 1, static_cast<int>(deadline.remaining().count())) < 0 && errno == EINTR) {
  }
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  return entry.revents == 0 ? ETIMEDOUT : error;
}

Endpoint in_numbers(const sockaddr& address, socklen_t length) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  const int error = ::getnameinfo(&address, length, host, sizeof host, port, sizeof port,
                                  NI_NUMERICHOST | NI_NUMERICSERV);
  if (error != 0) {
    throw BackendError(fmt::format("cannot tell a socket's address: {}", ::gai_strerror(error)));
  }
  return {host, static_cast<std::uint16_t>(std::stoi(port))};
}

bool is_link_local(const sockaddr& address) {
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(four.sin_addr.s_addr) >> 24 == 127;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

std::vector<const addrinfo*> in_order(const Addresses& addresses) {
  std::vector<const addrinfo*> order;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    order.push_back(address);
  }
  return order;
}

// A machine may know more addresses of its own name than the others do.
std::vector<const addrinfo*> known_to_others_first(const Addresses& addresses) {
  std::vector<const addrinfo*> order = in_order(addresses);
  std::ranges::stable_partition(order, [](const addrinfo* address) {
    return !is_loopback(*address->ai_addr) && !is_link_local(*address->ai_addr);
  });
  return order;
}

}  // namespace

std::optional<std::string> parse_host(std::string_view text) {
  if (text.starts_with('[') && text.ends_with(']')) {
    text = text.substr(1, text.size() - 2);
    return is_ipv6(text) ? std::optional<std::string>(text) : std::nullopt;
  }
  const bool name = !text.empty() && std::ranges::all_of(text, may_be_in_a_name);
  return name || is_ipv6(text) ? std::optional<std::string>(text) : std::nullopt;
}

std::optional<Endpoint> parse_endpoint(std::string_view text) {
  const auto colon = text.rfind(':');
  // The last part of "2001:db8::1" may be a port or belong to the address.
  if (colon == std::string_view::npos || is_ipv6(text)) return std::nullopt;
  const auto host = parse_host(text.substr(0, colon));
  const auto port = parse_number(text.substr(colon + 1), kPorts);
  if (!host || !port) return std::nullopt;
  return Endpoint{*host, static_cast<std::uint16_t>(*port)};
}

std::string in_words(const Endpoint& endpoint) {
  const bool six = endpoint.host.find(':') != std::string::npos;
  return six ? fmt::format("[{}]:{}", endpoint.host, endpoint.port)
             : fmt::format("{}:{}", endpoint.host, endpoint.port);
}

UniqueFd listen_tcp(const std::string& host, std::uint16_t port) {
  const Addresses addresses = resolve(host, port, 0);
  int error = 0;
  for (const addrinfo* address : known_to_others_first(addresses)) {
    UniqueFd fd = socket_for(*address);
    set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (::bind(fd.get(), address->ai_addr, address->ai_addrlen) == 0 &&
        ::listen(fd.get(), SOMAXCONN) == 0) {
      return fd;
    }
    error = errno;
  }
  const std::string message = fmt::format(
      "cannot listen on {} port {}: {}{}", host, port, reason_of(error),
      error == EADDRNOTAVAIL ? "; it must be an address of the machine where rank 0 runs" : "");
  if (error == EADDRINUSE) throw AddressInUse(message);
  throw BackendError(message);
}

std::vector<Endpoint> resolve_tcp(const std::string& host, std::uint16_t port) {
  const Addresses addresses = resolve(host, port, 0);
  std::vector<Endpoint> endpoints;
  for (const addrinfo* address : in_order(addresses)) {
    endpoints.push_back(in_numbers(*address->ai_addr, address->ai_addrlen));
  }
  return endpoints;
}

UniqueFd connect_tcp_at_once(const std::string& host, std::uint16_t port,
                             const Deadline& deadline) {
  const Addresses addresses = resolve(host, port, 0);
  const std::vector<const addrinfo*> order = in_order(addresses);
  int error = 0;
  auto left = std::ssize(order);
  for (const addrinfo* address : order) {
    UniqueFd fd(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const Deadline share = Deadline::after(deadline.remaining() / left--);
    error = fd ? connect_once(fd.get(), *address, share) : errno;
    // Retrying would not help.
    if (error == EMFILE || error == ENFILE) throw BackendError(no_socket(error));
    if (error == 0) return fd;
  }
  if (deadline.passed()) {
    throw TimeoutError(fmt::format("cannot connect to {} port {} within {:.1f} s: {}", host, port,
                                   deadline.span().count() / 1000.0, reason_of(error)));
  }
  const std::string message =
      fmt::format("cannot connect to {} port {}: {}", host, port, reason_of(error));
  if (error == ECONNREFUSED) throw ConnectionRefused(message);
  throw HostUnreachable(message);
}

UniqueFd connect_tcp(const std::string& host, std::uint16_t port, const Deadline& deadline) {
  while (true) {
    try {
      return connect_tcp_at_once(host, port, deadline);
    } catch (const ConnectionClosed&) {  // nobody listens there yet
    }
    ::poll(nullptr, 0, 50);
  }
}

std::string reachable_host(const std::string& host, const Deadline& deadline) {
  if (host.starts_with("localhost") || host.starts_with("ip6-")) return host;
  // All addresses of whatever machine it is said on.
  if (host == "0.0.0.0" || host == "::") return address_for_others().value_or("127.0.0.1");
  Addresses addresses(nullptr, ::freeaddrinfo);
  if (host != host_name()) {
    addresses = resolve_in_time(host, deadline);
  } else if (is_known(host)) {  // not every machine knows its own name
    addresses = resolve(host, 0, 0);
  }
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    if (is_number(host) || !is_loopback(*address->ai_addr)) return host;
  }
  return address_for_others().value_or(host);
}

Endpoint local_address(int socket) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (::getsockname(socket, address, &length) != 0) {
    throw BackendError(fmt::format("cannot tell a socket's address: {}", reason_of(errno)));
  }
  return in_numbers(*address, length);
}

std::string peer_host(int socket) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  return ::getpeername(socket, address, &length) == 0 ? in_numbers(*address, length).host : "";
}

bool is_within_machine(int socket) {
  return peer_host(socket) == local_address(socket).host;
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  if (::gethostname(name, sizeof name - 1) != 0) {
    throw BackendError(fmt::format("this machine has no name: {}", reason_of(errno)));
  }
  return name;
}

void keep_alive(int socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 4);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  // The same for data that was sent but not acknowledged.
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 10'000);
}

}  // namespace lockstep
