// SPDX-License-Identifier: BSD-3-Clause
// Stream sockets between machines, and their endpoints as people write them: "node0:29500",
// "[2001:db8::1]:29500". stream_socket.h says how sockets fail. A host is a name, or an IPv4 or
// IPv6 address.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/net/stream_socket.h"
#include "lockstep/core/number.h"

namespace lockstep {

// Ports that a user can name.
constexpr Range<int> kPorts{1, 65535};

struct Endpoint {
  // A name, or an IPv4 or IPv6 address without brackets.
  std::string host;
  std::uint16_t port;

  bool operator==(const Endpoint&) const = default;
};

// A host alone, for which an IPv6 address may have brackets; the result has none. nullopt if the
// text cannot be one, such as for a port behind it, a scheme before it, or spaces.
std::optional<std::string> parse_host(std::string_view text);

// host:port, with a port from 1 to 65535. An IPv6 address goes in brackets; without them it is
// accepted if its last number is too large for a part of the address, as in "::1:29500". nullopt
// for anything else.
std::optional<Endpoint> parse_endpoint(std::string_view text);

// The text that parse_endpoint reads.
std::string in_words(const Endpoint& endpoint);

class AddressInUse : public ErrorType<AddressInUse, BackendError> {
 public:
  using ErrorType::ErrorType;
};

// Listens on one address of this machine only; if a name has several, on one that other machines
// can reach. Port 0 picks a free port. BackendError if the host is not an address of this machine,
// AddressInUse if the port is taken.
UniqueFd listen_tcp(const std::string& host, std::uint16_t port);
// All addresses of the host, in the order in which they should be tried. BackendError if it is not
// known. Blocks as long as the system looks for a name, without a deadline.
std::vector<Endpoint> resolve_tcp(const std::string& host, std::uint16_t port);
// Tries one address after another, each for its share of the time that is left. ConnectionRefused
// if nobody listens there, HostUnreachable if it cannot be reached for another reason, TimeoutError
// if nothing answers by the deadline.
UniqueFd connect_tcp_at_once(const std::string& host, std::uint16_t port, const Deadline& deadline);
// Retries until the deadline while the connection is refused or the host cannot be reached.
UniqueFd connect_tcp(const std::string& host, std::uint16_t port, const Deadline& deadline);

// The local end of a listening or connected socket. The host is numeric.
Endpoint local_address(int socket);
// The other end's numeric host; empty if the other end has gone.
std::string peer_host(int socket);
// Whether both ends of a connection are on this machine.
bool is_within_machine(int socket);

// The host by which other machines reach `host`. If `host` is a name that resolves to loopback here
// (as Debian sets up a machine's own name), this machine's own name and unknown here, or 0.0.0.0 or
// "::", the result is the numeric address of another interface; otherwise it is `host` itself.
// Waits at most a minute for another machine's name to appear, since Kubernetes creates names while
// it starts their machines. BackendError if it stays unknown.
std::string reachable_host(const std::string& host, const Deadline& deadline);

// The name by which other machines know this one.
std::string host_name();

// Disables Nagle's algorithm, so that small messages leave at once. Has the kernel probe the other
// machine every few seconds, so that a connection to a vanished machine fails after about ten
// seconds.
void keep_alive(int socket);

}  // namespace lockstep
