// SPDX-License-Identifier: BSD-3-Clause
// Builds the variables of one rank, finds a free port, divides cores among ranks as threads, and
// pins ranks only if the launch can claim all cores.
#include "lockstep/launch/rank_environment.h"

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "lockstep/core/error.h"
#include "lockstep/core/net/unix_socket.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/core/system_error.h"

namespace lockstep {
namespace {

constexpr const char* kOpenMp = "OMP_NUM_THREADS";
constexpr const char* kOpenBlas = "OPENBLAS_NUM_THREADS";

}  // namespace

EnvironmentVariables rank_environment(const LaunchFacts& facts, int local_rank) {
  const bool alone = !facts.node;
  const Node node = facts.node.value_or(Node{.nodes = 1});
  const std::string rank = std::to_string(node.number * facts.ranks + local_rank);
  const std::string size = std::to_string(node.nodes * facts.ranks);
  return {
      {"RANK", rank},
      {"WORLD_SIZE", size},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(facts.ranks)},
      {"GROUP_RANK", std::to_string(node.number)},
      {"GROUP_WORLD_SIZE", std::to_string(node.nodes)},
      {"ROLE_RANK", rank},
      {"ROLE_WORLD_SIZE", size},
      {"ROLE_NAME", "default"},
      {"MASTER_ADDR", alone ? "127.0.0.1" : node.host},
      {"MASTER_PORT", std::to_string(alone ? facts.master_port : node.port)},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(facts.restart_count)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(facts.max_restarts)},
      {"TORCHELASTIC_RUN_ID", facts.run_id},
      // An outer torchrun sets it to True; then no rank would open the store.
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"LOCKSTEP_STORE", alone ? facts.store : ""},
      {"LOCKSTEP_LAUNCHER", facts.store},
      // An outer elastic job's: these ranks are no members of it.
      {"LOCKSTEP_ELASTIC", ""},
  };
}

EnvironmentVariables member_environment(const StartedMember& started) {
  EnvironmentVariables variables{{"LOCKSTEP_ELASTIC", started.board},
                                 {"LOCKSTEP_MEMBER", std::to_string(started.member)},
                                 {"LOCKSTEP_PLACE", std::to_string(started.place)},
                                 {"LOCKSTEP_MOST_RANKS", std::to_string(started.most)},
                                 {"LOCKSTEP_NEWCOMER", started.newcomer ? "1" : "0"}};
  if (!started.newcomer) return variables;
  for (const char* name : {"RANK", "LOCAL_RANK", "ROLE_RANK"}) variables.emplace_back(name, "0");
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"}) {
    variables.emplace_back(name, "1");
  }
  return variables;
}

int free_port() {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (!socket || ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw BackendError(fmt::format("cannot find a free port on 127.0.0.1: {}", reason_of(errno)));
  }
  return ntohs(address.sin_port);
}

int threads_per_rank(int ranks, std::optional<int> threads) {
  if (threads) return *threads;
  return omp_num_threads().value_or(std::max(1, available_cores() / ranks));
}

EnvironmentVariables thread_environment(int ranks, std::optional<int> threads) {
  const std::string count = std::to_string(threads_per_rank(ranks, threads));
  if (threads) return {{kOpenMp, count}, {kOpenBlas, count}};
  EnvironmentVariables variables;
  // OpenBLAS follows OMP_NUM_THREADS if its own variable is unset.
  if (!environment(kOpenMp)) {
    variables.emplace_back(kOpenMp, count);
    if (!environment(kOpenBlas)) variables.emplace_back(kOpenBlas, count);
  }
  return variables;
}

std::optional<std::vector<std::vector<int>>> split_cores(const std::vector<int>& cores, int ranks,
                                                         int threads_per_rank) {
  const auto share = static_cast<std::size_t>(threads_per_rank);
  if (ranks < 2 || cores.size() != static_cast<std::size_t>(ranks) * share) return std::nullopt;
  std::vector<std::vector<int>> shares;
  for (auto first = cores.begin(); first != cores.end(); first += threads_per_rank) {
    shares.emplace_back(first, first + threads_per_rank);
  }
  return shares;
}

CoreClaim::CoreClaim(const std::vector<int>& cores) {
  try {
    for (int core : cores) {
      sockets_.push_back(listen_unix(fmt::format("@lockstep-core-{}", core)));
    }
  } catch (const BackendError&) {
    sockets_.clear();
  }
}

CoreShares::CoreShares(int ranks, int threads_per_rank) {
  const std::vector<int> cores = allowed_cores();
  auto shares = split_cores(cores, ranks, threads_per_rank);
  // Under a quota, a rank that may move between cores is throttled less often.
  if (!shares || available_cores() < static_cast<int>(cores.size())) return;
  claim_.emplace(cores);
  if (claim_->held()) shares_ = std::move(*shares);
}

void CoreShares::pin(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  if (index < shares_.size()) pin_to_cores(shares_[index]);
}

}  // namespace lockstep
