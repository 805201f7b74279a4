// SPDX-License-Identifier: BSD-3-Clause
// A TCP port of 127.0.0.1 that nobody listens on.
#pragma once

#include <stdexcept>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "lockstep/core/unique_fd.h"

namespace lockstep::testing {

// Somebody listens on this one, on all addresses.
class TakenPort {
 public:
  TakenPort() : socket_(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    socklen_t length = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (::bind(socket_.get(), generic, length) != 0 || ::listen(socket_.get(), 1) != 0 ||
        ::getsockname(socket_.get(), generic, &length) != 0) {
      throw std::runtime_error("no free port");
    }
    port_ = ntohs(address.sin6_port);
  }
  int port() const { return port_; }

 private:
  UniqueFd socket_;
  int port_ = 0;
};

// Whether ranks can rendezvous at [::1] here.
inline bool has_ipv6() {
  const UniqueFd socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  return socket && ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

// The kernel's choice among the free ones. Another process may take it before it is used, but there
// are some 28,000 to choose from.
inline int free_port() {
  const TakenPort taken;
  return taken.port();
}

}  // namespace lockstep::testing
