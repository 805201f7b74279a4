// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/rendezvous/rendezvous.h"

#include <charconv>
#include <cstdint>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/c10d_store.h"
#include "lockstep/rendezvous/local_store.h"

namespace lockstep {
namespace {

constexpr const char* kLaunchHint =
    "start it with `lockstep run -n N PROGRAM` or another launcher, which sets all of them, or "
    "unset them all to train alone";

// What the options say, else what the environment says.
std::optional<int> given_or_environment(const char* what, const char* variable,
                                        std::optional<int> given) {
  const auto found = environment_int(variable);
  if (given && found && *given != *found) {
    throw UsageError(
        fmt::format("{} is {} in the options, but the environment says {}={}; give "
                    "it once, or make both agree",
                    what, *given, variable, *found));
  }
  return given ? given : found;
}

void check_member(const Membership& member) {
  if (member.world_size < 1) {
    throw UsageError(fmt::format("the world size is {}; it must be at least 1", member.world_size));
  }
  if (member.rank < 0 || member.rank >= member.world_size) {
    throw UsageError(fmt::format("the rank is {}, but the world size is {}: ranks go from 0 to {}",
                                 member.rank, member.world_size, member.world_size - 1));
  }
  if (member.local_world_size < 1 || member.local_rank < 0 ||
      member.local_rank >= member.local_world_size) {
    throw UsageError(
        fmt::format("rank {} has LOCAL_RANK={} and LOCAL_WORLD_SIZE={}: local ranks go from 0 to "
                    "LOCAL_WORLD_SIZE - 1",
                    member.rank, member.local_rank, member.local_world_size));
  }
}

// Fills in the places on this host; without a launcher's word, all ranks share one.
Membership member(int rank, int world_size) {
  Membership result;
  result.rank = rank;
  result.world_size = world_size;
  result.local_rank = environment_int("LOCAL_RANK").value_or(rank);
  result.local_world_size = environment_int("LOCAL_WORLD_SIZE").value_or(world_size);
  check_member(result);
  return result;
}

std::uint16_t parse_port(const std::string& text, const std::string& source) {
  unsigned port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port < 1 || port > 65535) {
    throw UsageError(
        fmt::format("{}: \"{}\" is not a port; it must be a number from 1 to 65535", source, text));
  }
  return static_cast<std::uint16_t>(port);
}

// What a launcher's variables say: who this process is, and where the ranks meet.
struct Told {
  Membership member;
  std::optional<std::string> local_store;
  std::string address;
  std::uint16_t port = 0;
};

// Nothing if none of the variables is set.
std::optional<Told> read_environment(std::optional<int> given_rank,
                                     std::optional<int> given_world_size) {
  const auto rank = given_or_environment("rank", "RANK", given_rank);
  const auto world_size = given_or_environment("world_size", "WORLD_SIZE", given_world_size);
  const auto address = environment("MASTER_ADDR");
  const auto port = environment("MASTER_PORT");
  const auto local_store = environment("LOCKSTEP_STORE");
  const bool alone = !rank && !world_size && !address && !port && !local_store;
  if (alone && !environment("LOCAL_RANK")) return std::nullopt;

  std::vector<std::string> missing;
  if (!rank) missing.emplace_back("RANK");
  if (!world_size) missing.emplace_back("WORLD_SIZE");
  if (!local_store && !address) missing.emplace_back("MASTER_ADDR");
  if (!local_store && !port) missing.emplace_back("MASTER_PORT");
  if (!missing.empty()) {
    throw UsageError(fmt::format("env://: {} not set, though other variables of a launcher are; {}",
                                 fmt::join(missing, " and "), kLaunchHint));
  }
  Told told{.member = member(*rank, *world_size), .local_store = local_store, .address = {}};
  if (!local_store) {
    told.address = *address;
    told.port = parse_port(*port, "MASTER_PORT");
  }
  return told;
}

Membership meet_by_environment(const RendezvousOptions& options) {
  auto told = read_environment(options.rank, options.world_size);
  if (!told) return Membership();
  Membership result = std::move(told->member);
  if (told->local_store) {
    result.store = std::make_shared<LocalStore>(*told->local_store);
  } else {
    // torchrun serves the store itself and says so.
    const bool serve =
        result.rank == 0 && environment("TORCHELASTIC_USE_AGENT_STORE").value_or("") != "True";
    result.store =
        make_tcp_store(told->address, told->port, serve, result.world_size, options.timeout);
  }
  return result;
}

// For the methods that name a place and leave rank and size to the options or the environment.
Membership numbered(const RendezvousOptions& options) {
  const auto rank = given_or_environment("rank", "RANK", options.rank);
  const auto world_size = given_or_environment("world_size", "WORLD_SIZE", options.world_size);
  if (!rank || !world_size) {
    throw UsageError(fmt::format("{} needs {}: give it in the options or as {}",
                                 options.init_method, !rank ? "the rank" : "the world size",
                                 !rank ? "RANK" : "WORLD_SIZE"));
  }
  return member(*rank, *world_size);
}

Membership meet_by_tcp(const RendezvousOptions& options, const std::string& address) {
  const auto colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    throw UsageError(
        fmt::format("init_method \"{}\": it must be tcp://host:port", options.init_method));
  }
  const std::uint16_t port = parse_port(address.substr(colon + 1), options.init_method);
  Membership result = numbered(options);
  result.store = make_tcp_store(address.substr(0, colon), port, result.rank == 0, result.world_size,
                                options.timeout);
  return result;
}

Membership meet_by_file(const RendezvousOptions& options, const std::string& path) {
  if (!path.starts_with('/')) {
    throw UsageError(fmt::format(
        "init_method \"{}\": it must be file:/// and an absolute path that all ranks can write",
        options.init_method));
  }
  Membership result = numbered(options);
  result.store = make_file_store(path, result.world_size);
  return result;
}

}  // namespace

std::optional<Membership> membership_in_environment() {
  const auto told = read_environment({}, {});
  return told ? std::optional(told->member) : std::nullopt;
}

Membership meet(const RendezvousOptions& options) {
  const std::string& method = options.init_method;
  if (method == "env://") return meet_by_environment(options);
  if (method.starts_with("tcp://")) return meet_by_tcp(options, method.substr(6));
  if (method.starts_with("file://")) return meet_by_file(options, method.substr(7));
  throw UsageError(fmt::format(
      "init_method \"{}\" is unknown; use env://, tcp://host:port or file:///path", method));
}

}  // namespace lockstep
