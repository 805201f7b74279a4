// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/launch/spawn.h"

#include <algorithm>
#include <cstdio>
#include <iostream>

#include <fmt/format.h>
#include <signal.h>

#include "lockstep/core/cpu.h"
#include "lockstep/core/environment.h"
#include "lockstep/launch/exit_status.h"
#include "lockstep/launch/freed_memory.h"
#include "lockstep/launch/new_threads.h"
#include "lockstep/rendezvous/local_store.h"

namespace lockstep::spawn_detail {
namespace {

std::string result_key(int rank) {
  return fmt::format("lockstep/spawn/result/{}", rank);
}

// What is still in a buffer would be written by every rank as well.
void flush() {
  std::cout.flush();
  std::clog.flush();
  std::fflush(nullptr);
}

AgentOptions agent_options(int ranks, const SpawnOptions& options) {
  AgentOptions agent;
  agent.ranks = ranks;
  agent.threads = options.threads;
  if (!agent.threads && !environment("OMP_NUM_THREADS")) {
    agent.threads = std::max(1, available_cores() / std::max(1, ranks));
  }
  agent.prefix = options.prefix;
  agent.on_line = options.on_line;
  agent.log_dir = options.log_dir;
  agent.stop_grace = options.stop_grace;
  agent.interrupt_grace = options.interrupt_grace;
  return agent;
}

}  // namespace

std::vector<std::string> run(int ranks, const std::function<std::string(int)>& body,
                             const SpawnOptions& options) {
  require_no_new_threads(fmt::format("spawn({})", ranks));
  const AgentOptions agent = agent_options(ranks, options);
  flush();
  AgentResult result = run_agent(agent, [&](int rank) {
    renew_libtorchs_threads();
    // The libraries are loaded already and do not read the environment again.
    if (agent.threads) limit_threads(*agent.threads);
    keep_freed_memory();
    LocalStore(*environment("LOCKSTEP_STORE")).set(result_key(rank), body(rank));
  });
  if (result.signal != 0) {
    ::raise(result.signal);
    throw Error(fmt::format("spawn({}): stopped by {}", ranks, signal_words(result.signal)));
  }
  if (result.failure) {
    const std::string message =
        fmt::format("spawn({}): rank {} (pid {}) failed first: {}", ranks, result.failure->rank,
                    result.failure->pid, result.failure->cause);
    throw RankFailed(std::move(*result.failure), message);
  }
  if (!result.output_error.empty()) {
    throw BackendError(
        fmt::format("spawn({}): {}; the ranks ran to their end", ranks, result.output_error));
  }
  std::vector<std::string> results;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto found = result.store.find(result_key(rank));
    if (found == result.store.end()) {
      throw Error(
          fmt::format("spawn({}): rank {} ended with exit code 0 before its function "
                      "returned; does it call exit()?",
                      ranks, rank));
    }
    results.push_back(std::move(found->second));
  }
  return results;
}

}  // namespace lockstep::spawn_detail
