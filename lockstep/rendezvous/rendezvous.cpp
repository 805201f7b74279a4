// SPDX-License-Identifier: BSD-3-Clause
// Rendezvous by environment variables, TCP address, file or MPI.
#include "lockstep/rendezvous/rendezvous.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/built_with.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/net/secret.h"
#include "lockstep/core/net/tcp_socket.h"
#include "lockstep/rendezvous/c10d_store.h"
#include "lockstep/rendezvous/launchers.h"
#include "lockstep/rendezvous/losses.h"
#include "lockstep/rendezvous/mpi_library.h"
#include "lockstep/rendezvous/prefix_store.h"
#include "lockstep/rendezvous/roll_call.h"
#include "lockstep/rendezvous/store_client.h"
#include "lockstep/rendezvous/tcp_store.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kOtherStoreAnswers = std::chrono::seconds(1);

constexpr const char* kLaunchHint =
    "start it with `lockstep run -n N PROGRAM` or another launcher, which sets all of them, or "
    "unset them all to train alone";

// The option's value, else the environment's; UsageError if both are given and differ.
std::optional<int> given_or_environment(const char* what, const char* variable,
                                        std::optional<int> given,
                                        const Range<int>& range = kFrom0) {
  const auto found = environment_int(variable, range);
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
  if (member.local_world_size < 1 || member.local_world_size > member.world_size ||
      member.local_rank < 0 || member.local_rank >= member.local_world_size) {
    throw UsageError({.rank = member.rank, .size = member.world_size},
                     fmt::format("LOCAL_RANK={} and LOCAL_WORLD_SIZE={}", member.local_rank,
                                 member.local_world_size),
                     "LOCAL_RANK must be less than LOCAL_WORLD_SIZE, which must be at most the "
                     "world size");
  }
}

int launcher_says(const std::optional<ForeignLauncher>& launcher,
                  std::optional<int> ForeignLauncher::*what, int otherwise) {
  return launcher ? ((*launcher).*what).value_or(otherwise) : otherwise;
}

// Fills in the local rank and size; if no launcher gives them, all ranks share one host.
Membership member(int rank, int world_size, const std::optional<ForeignLauncher>& launcher = {}) {
  Membership result;
  result.rank = rank;
  result.world_size = world_size;
  const auto local_rank = environment_int("LOCAL_RANK");
  const auto local_size = environment_int("LOCAL_WORLD_SIZE", kFrom1);
  result.local_rank =
      local_rank ? *local_rank : launcher_says(launcher, &ForeignLauncher::local_rank, rank);
  result.local_world_size =
      local_size ? *local_size : launcher_says(launcher, &ForeignLauncher::local_size, world_size);
  check_member(result);
  if (world_size > 1) result.secret = secret_of_environment();
  return result;
}

// A launcher's variables: this process's numbers, and where the ranks rendezvous.
struct LaunchInfo {
  enum class Via { local_store, tcp, mpi };
  Membership member;
  Via via = Via::tcp;
  // The path of the local store, or the host of a TCP store.
  std::string address;
  std::uint16_t port = 0;
};

// The launcher that made this process a rank; nullopt if an agent started it. UsageError if it
// disagrees with RANK and WORLD_SIZE.
std::optional<ForeignLauncher> launcher_beside(std::optional<int> rank,
                                               std::optional<int> world_size) {
  if (started_by_agent()) return std::nullopt;
  auto launcher = launcher_of_ranks();
  const auto differ = [](std::optional<int> one, std::optional<int> other) {
    return one && other && *one != *other;
  };
  if (launcher && (differ(rank, launcher->rank) || differ(world_size, launcher->size))) {
    throw UsageError(fmt::format(
        "env://: this process is {}, but RANK={} WORLD_SIZE={} (or the options) say otherwise; "
        "unset RANK and WORLD_SIZE to let the launcher number the ranks",
        in_words(*launcher), rank ? std::to_string(*rank) : "",
        world_size ? std::to_string(*world_size) : ""));
  }
  return launcher;
}

// An IPv6 address without brackets, in which torchrun and others leave it or not.
std::optional<std::string> master_addr() {
  const auto text = environment("MASTER_ADDR");
  if (!text) return std::nullopt;
  if (auto host = parse_host(*text)) return host;
  throw UsageError(fmt::format(
      "MASTER_ADDR=\"{}\" in the environment: give one host name or address of rank 0, without "
      "port (which goes into MASTER_PORT), scheme, spaces or quotes, or unset it",
      *text));
}

// nullopt if none of the variables is set.
std::optional<LaunchInfo> read_environment(std::optional<int> given_rank,
                                           std::optional<int> given_world_size) {
  auto rank = given_or_environment("rank", "RANK", given_rank);
  auto world_size = given_or_environment("world_size", "WORLD_SIZE", given_world_size, kFrom1);
  const auto address = master_addr();
  const auto port = environment_int("MASTER_PORT", kPorts);
  const auto local_store = environment("LOCKSTEP_STORE");
  const auto launcher = launcher_beside(rank, world_size);
  // With a world size of 1 in the options, no launcher is expected.
  const bool unnumbered = !environment("RANK") && !environment("WORLD_SIZE") &&
                          (given_world_size == 1 ? rank.value_or(0) == 0 : !rank && !world_size);
  const bool alone = unnumbered && !address && !port && !local_store;
  if (alone && !launcher && !environment("LOCAL_RANK")) return std::nullopt;
  if (launcher && !rank) rank = launcher->rank;
  if (launcher && !world_size) world_size = launcher->size;

  std::vector<std::string> missing;
  const auto miss = [&](const char* name) {
    missing.emplace_back(std::getenv(name) == nullptr ? name : fmt::format("{} (empty)", name));
  };
  if (!rank) miss("RANK");
  if (!world_size) miss("WORLD_SIZE");
  const bool launcher_has_rendezvous = launcher && !address && !port;
  if (!local_store && !launcher_has_rendezvous && !address) miss("MASTER_ADDR");
  if (!local_store && !launcher_has_rendezvous && !port) miss("MASTER_PORT");
  if (!missing.empty()) {
    throw UsageError(fmt::format("env://: {} not set, though other variables of a launcher are; {}",
                                 fmt::join(missing, " and "), kLaunchHint));
  }
  LaunchInfo launch{.member = member(*rank, *world_size, launcher), .address = {}};
  if (local_store) {
    launch.via = LaunchInfo::Via::local_store;
    launch.address = *local_store;
  } else if (!launcher_has_rendezvous) {
    launch.address = *address;
    launch.port = static_cast<std::uint16_t>(*port);
  } else if (launcher->name == "Slurm") {
    auto [host, slurm_port] = slurm_rendezvous();
    launch.address = std::move(host);
    launch.port = slurm_port;
  } else {
    launch.via = LaunchInfo::Via::mpi;
  }
  return launch;
}

TcpStoreOptions tcp_store_options(const Membership& member, const RendezvousOptions& options,
                                  std::string host, std::uint16_t port) {
  return {.host = std::move(host),
          .port = port,
          .secret = member.secret,
          .rank = member.rank,
          .world_size = member.world_size,
          .timeout = options.timeout};
}

void rendezvous_of_mpirun(Membership& member, TcpStoreOptions store_options) {
  try {
    if constexpr (built_with::mpi) {
      MpiLibrary::load();
    } else {
      throw BackendError(fmt::format("MPI is not built into this Lockstep: {}", kHowToGetMpi));
    }
  } catch (const BackendError& error) {
    ErrorDetails details = error.details();
    details.cause = "mpirun started this rank, but " + details.cause;
    if (!details.remedy.empty()) details.remedy += "; ";
    details.remedy +=
        "or set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a port that is free there";
    throw BackendError(std::move(details));
  }
  if constexpr (built_with::mpi) rendezvous_by_mpi(member, std::move(store_options));
}

// Throws the reason why this process cannot serve at its address: another rank 0 of this job serves
// there, or something else does.
[[noreturn]] void explain_address_in_use(Membership member, TcpStoreOptions store_options,
                                         const AddressInUse& error) {
  store_options.timeout = std::min(store_options.timeout, kOtherStoreAnswers);
  try {
    member.store = join_tcp_store(store_options);
  } catch (const Error&) {
    throw BackendError(error.details());
  }
  refuse_second_rank_0(member, error);
}

// Returns a name or address of rank 0 that ranks on other machines can reach, too.
std::string host_of_rank_0(const Membership& member, const std::string& host,
                           std::chrono::milliseconds timeout) {
  try {
    return reachable_host(host, Deadline::after(timeout));
  } catch (const BackendError& error) {
    throw BackendError({.rank = member.rank, .size = member.world_size},
                       "the host of rank 0 cannot be found: " + error.details().cause,
                       "set MASTER_ADDR, or the host in tcp://host:port, to a name or address of "
                       "rank 0 that this machine knows (getent hosts NAME)");
  }
}

// Uses the store that rank 0 serves.
void rendezvous_at_rank_0(Membership& member, TcpStoreOptions store_options) {
  store_options.host = host_of_rank_0(member, store_options.host, store_options.timeout);
  member.address = store_options.host;
  try {
    member.store =
        member.rank == 0 ? serve_tcp_store(store_options).store : join_tcp_store(store_options);
  } catch (const AddressInUse& error) {
    explain_address_in_use(member, store_options, error);
  }
}

Membership rendezvous_by_environment(const RendezvousOptions& options) {
  auto launch = read_environment(options.rank, options.world_size);
  if (!launch) return Membership();
  Membership result = std::move(launch->member);
  const TcpStoreOptions store_options =
      tcp_store_options(result, options, launch->address, launch->port);
  if (launch->via == LaunchInfo::Via::local_store) {
    result.store = std::make_shared<LocalStore>(
        launch->address, StoreUser{.context = {.rank = result.rank, .size = result.world_size},
                                   .patience = options.timeout});
  } else if (launch->via == LaunchInfo::Via::mpi) {
    rendezvous_of_mpirun(result, store_options);
  } else if (environment("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    // torchrun serves the store itself. Restarted ranks must not read what failed ones left there.
    const std::string attempt = environment("TORCHELASTIC_RESTART_COUNT").value_or("0");
    result.store = std::make_shared<PrefixStore>(
        fmt::format("attempt_{}/", attempt),
        join_c10d_store(launch->address, launch->port, result.world_size, options.timeout));
    result.address = host_of_rank_0(result, launch->address, options.timeout);
  } else {
    rendezvous_at_rank_0(result, store_options);
  }
  return result;
}

// The membership for methods that give an address: rank and size come from the options or the
// environment.
Membership numbered(const RendezvousOptions& options) {
  const auto rank = given_or_environment("rank", "RANK", options.rank);
  const auto world_size =
      given_or_environment("world_size", "WORLD_SIZE", options.world_size, kFrom1);
  if (!rank || !world_size) {
    throw UsageError(fmt::format("{} needs {}: give it in the options or as {}",
                                 options.init_method, !rank ? "the rank" : "the world size",
                                 !rank ? "RANK" : "WORLD_SIZE"));
  }
  return member(*rank, *world_size);
}

Membership rendezvous_by_tcp(const RendezvousOptions& options, const std::string& address) {
  const auto store = parse_endpoint(address);
  if (!store) {
    throw UsageError(fmt::format(
        "init_method \"{}\": it must be tcp://host:port, with a host of rank 0 and a port from {} "
        "to {}, as in tcp://node0:29500 or tcp://[2001:db8::1]:29500",
        options.init_method, kPorts.least, kPorts.most));
  }
  Membership result = numbered(options);
  rendezvous_at_rank_0(result, tcp_store_options(result, options, store->host, store->port));
  return result;
}

Membership rendezvous_by_file(const RendezvousOptions& options, const std::string& path) {
  if (!path.starts_with('/')) {
    throw UsageError(fmt::format(
        "init_method \"{}\": it must be file:/// and an absolute path that all ranks can write",
        options.init_method));
  }
  Membership result = numbered(options);
  result.store = make_file_store(path, result.world_size, options.timeout);
  return result;
}

Membership rendezvous_by(const RendezvousOptions& options) {
  const std::string& method = options.init_method;
  if (method == "env://") return rendezvous_by_environment(options);
  if (method.starts_with("tcp://")) return rendezvous_by_tcp(options, method.substr(6));
  if (method.starts_with("file://")) return rendezvous_by_file(options, method.substr(7));
  throw UsageError(fmt::format(
      "init_method \"{}\" is unknown; use env://, tcp://host:port or file:///path", method));
}

}  // namespace

std::optional<Membership> membership_in_environment() {
  const auto launch = read_environment({}, {});
  return launch ? std::optional(launch->member) : std::nullopt;
}

Membership rendezvous(const RendezvousOptions& options) {
  Membership member = rendezvous_by(options);
  member.losses = LossRecord::of(options.init_method, member.rank, member.world_size);
  return member;
}

}  // namespace lockstep
