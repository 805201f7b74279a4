// SPDX-License-Identifier: BSD-3-Clause
// Tells host and port apart, and refuses at once what a name server would be asked in vain.
#include "lockstep/core/net/endpoint.h"

#include <algorithm>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

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
  // Of "2001:db8::1" nobody knows whether the last part is a port.
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

}  // namespace lockstep
