// SPDX-License-Identifier: BSD-3-Clause
// Stream sockets between machines; stream_socket.h says how they fail. Hosts are names or addresses
// of either version of IP.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/core/number.h"
#include "lockstep/core/stream_socket.h"

namespace lockstep {

// Ports that a user can name.
constexpr Range<int> kPorts{1, 65535};

class AddressInUse : public BackendError {
 public:
  using BackendError::BackendError;
};

// Listens on an address of this machine, and on no other. Port 0 takes one that is free.
// BackendError if the host is none of this machine's, AddressInUse if another has the port.
UniqueFd listen_tcp(const std::string& host, std::uint16_t port);
// ConnectionRefused if nobody listens there, HostUnreachable if it cannot be reached otherwise,
// TimeoutError if nothing answers.
UniqueFd connect_tcp_at_once(const std::string& host, std::uint16_t port, const Deadline& deadline);
// Tries again until the deadline while nobody listens there.
UniqueFd connect_tcp(const std::string& host, std::uint16_t port, const Deadline& deadline);

// The address of one of this machine's network interfaces, as a number; of IP version 4 if it has
// one. BackendError if there is no such interface, or it has none.
std::string address_of_interface(const std::string& interface);

// Of a socket that listens or is connected: its own end, as a number.
struct TcpAddress {
  std::string host;
  std::uint16_t port;
};
TcpAddress local_address(int socket);
// The other end's host, as a number; empty if the other end has gone.
std::string peer_host(int socket);
// Whether both ends of a connection are on this machine.
bool is_within_machine(int socket);

// Returns the host; or, if its name leads to loopback here (as Debian has it for a machine's own
// name), or is this machine's own and unknown here, the number of an interface that others can
// reach. Waits at most a minute for another name that is not known yet: Kubernetes makes names
// while it starts their machines. BackendError if it stays unknown.
std::string reachable_host(const std::string& host, const Deadline& deadline);

// The name by which other machines know this one.
std::string host_name();

// Sends at once what is small; and has the kernel ask every few seconds whether the other machine
// is still there, so that a connection to one that vanished fails after some ten seconds.
void keep_alive(int socket);

}  // namespace lockstep
