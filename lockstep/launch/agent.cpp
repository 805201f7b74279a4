// SPDX-License-Identifier: BSD-3-Clause
// Checks the options, runs the event loop, and reports the failure.
#include "lockstep/launch/agent.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/launch/attempt_end.h"
#include "lockstep/launch/etcd_membership.h"
#include "lockstep/launch/rank_watch.h"
#include "lockstep/launch/signal_watch.h"

namespace lockstep {
namespace {

// Replaces this process with the program.
[[noreturn]] void execute(const std::vector<std::string>& program) {
  std::vector<char*> arguments;
  for (const std::string& argument : program) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  const int error = errno;
  std::string hint;
  if (error == ENOENT && ::access(arguments[0], F_OK) == 0) {
    hint = program[0].find('/') == std::string::npos
               ? fmt::format("; it is not in PATH, did you mean ./{}?", program[0])
               : "; the interpreter that it names is not there";
  }
  throw RankExit{error == ENOENT ? 127 : 126,
                 fmt::format("cannot execute {}: {}{}", program[0], std::strerror(error), hint)};
}

// The warning of more ranks than cores, if this process has not had it yet.
std::vector<std::string> warnings_before_start(int ranks) {
  static bool warned = false;
  const std::string warning = oversubscription(ranks, available_cores());
  if (warning.empty() || std::exchange(warned, true)) return {};
  return {warning};
}

// The kernel's limit on process ids.
int most_processes() {
  int most = std::numeric_limits<int>::max();
  std::ifstream("/proc/sys/kernel/pid_max") >> most;
  return most;
}

void check(const AgentOptions& options) {
  if (options.ranks < 1) {
    throw UsageError(
        fmt::format("{} ranks were asked for; there must be at least 1", options.ranks));
  }
  if (const int most = most_processes(); options.ranks > most) {
    throw UsageError(fmt::format("{} ranks were asked for; this system runs at most {} processes",
                                 options.ranks, most));
  }
  if (options.threads && *options.threads < 1) {
    throw UsageError(fmt::format("{} threads per rank were asked for; there must be at least 1",
                                 *options.threads));
  }
  for (const int rank : options.shown_ranks.value_or(std::vector<int>{})) {
    if (rank >= 0 && rank < options.ranks) continue;
    throw UsageError(fmt::format("the output of rank {} was asked for, and ranks are 0 to {}", rank,
                                 options.ranks - 1));
  }
}

// Waits for the other hosts of an elastic job, and runs the ranks that this one has then.
AgentResult run_on_host(AgentOptions options, const RankBody& body, SignalWatch& signals,
                        std::vector<std::string>& warnings) {
  EtcdMembership membership(*options.elastic, *options.cluster, options.ranks);
  const EtcdMembership::Met met = membership.meet(signals);
  if (met.signal != 0) {
    AgentResult result;
    result.exit_code = 128 + met.signal;
    result.signal = met.signal;
    result.told_to_stop = true;
    return result;
  }
  options.ranks = static_cast<int>(met.members.size());
  options.attempt.run_id = options.cluster->job;
  return RankWatch(options, body, signals, membership, met.members, warnings).run();
}

RankBody program_of(const AgentOptions& options) {
  if (options.program.empty()) throw UsageError("there is no program to run");
  return [&options](int, const UniqueFd&) { execute(options.program); };
}

}  // namespace

AgentResult run_agent(const AgentOptions& options) {
  return run_agent(options, program_of(options));
}

AgentResult run_agent(const AgentOptions& options, const RankBody& body) {
  check(options);
  // The caller's function may block or throw, so it is called only while no SignalWatch lives.
  const auto hand_over = [&](std::vector<std::string>& warnings) {
    if (!options.on_warning) return;
    for (const std::string& warning : std::exchange(warnings, {})) options.on_warning(warning);
  };
  std::vector<std::string> warnings = warnings_before_start(options.ranks);
  hand_over(warnings);
  AgentResult result = [&] {
    SignalWatch signals;
    if (options.cluster) {
      return run_on_host(options, body, signals, warnings);
    }
    return RankWatch(options, body, signals, nullptr, warnings).run();
  }();
  hand_over(warnings);
  return result;
}

AgentResult run_agent(const AgentOptions& options, SignalWatch& signals, OtherAgents* others) {
  check(options);
  std::vector<std::string> warnings = warnings_before_start(options.ranks);
  const RankBody body = program_of(options);
  return RankWatch(options, body, signals, others, warnings).run();
}

std::string report(const AgentResult& result, int ranks) {
  if (result.signal != 0) return fmt::format("stopped by {}\n", signal_words(result.signal));
  if (!result.failure) return result.output_error.empty() ? "" : result.output_error + "\n";
  return failure_in_words({.failure = result.failure}, ranks) + "\n" +
         last_lines_in_words(*result.failure);
}

}  // namespace lockstep
