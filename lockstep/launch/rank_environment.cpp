// SPDX-License-Identifier: BSD-3-Clause
// Builds the variables of one rank, and finds a free port.
#include "lockstep/launch/rank_environment.h"

#include <cerrno>

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "lockstep/core/error.h"
#include "lockstep/core/system_error.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep {

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
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"TORCHELASTIC_MAX_RESTARTS", "0"},
      {"TORCHELASTIC_RUN_ID", facts.run_id},
      // An outer torchrun sets it to True; then no rank would open the store.
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"LOCKSTEP_STORE", alone ? facts.store : ""},
      {"LOCKSTEP_LAUNCHER", facts.store},
  };
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

}  // namespace lockstep
