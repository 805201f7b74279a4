// SPDX-License-Identifier: BSD-3-Clause
// A host and a port as people write them: "node0:29500", "[2001:db8::1]:29500".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/core/number.h"

namespace lockstep {

// Ports that a user can name.
constexpr Range<int> kPorts{1, 65535};

struct Endpoint {
  // A name, or an IPv4 or IPv6 address without brackets.
  std::string host;
  std::uint16_t port;
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

}  // namespace lockstep
