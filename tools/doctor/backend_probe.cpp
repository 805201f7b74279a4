// SPDX-License-Identifier: BSD-3-Clause
// Probes a backend of the registry: with ranks on this machine, or by its library.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include "lockstep/comm/backends.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/launch/spawn.h"
#include "tools/doctor/all_reduce_trial.h"
#include "tools/doctor/probes.h"
#include "tools/doctor/without_warnings.h"

namespace lockstep {
namespace {

constexpr int kRanks = 2;
constexpr unsigned kSecondsToLive = 15;

// Ends a rank that hangs where the group's timeout does not apply, such as in libtorch.
void die_if_stuck() {
  ::signal(SIGALRM, SIG_DFL);
  sigset_t alarm;
  ::sigemptyset(&alarm);
  ::sigaddset(&alarm, SIGALRM);
  ::sigprocmask(SIG_UNBLOCK, &alarm, nullptr);
  ::alarm(kSecondsToLive);
}

Finding cannot_train(const std::string& found) {
  return {.state = Finding::State::broken,
          .found = found,
          .advice = "until this is fixed, processes of this machine cannot train together"};
}

Finding probe_with_ranks(const std::string& backend) try {
  const auto join_and_reduce = [&backend](int) {
    die_if_stuck();
    const auto group =
        init_process_group({.backend = backend, .timeout = kTrialTimeout, .device = at::kCPU});
    try_all_reduce(*group);
  };
  const WithoutWarnings quiet;
  spawn(kRanks, join_and_reduce, {.threads = 1, .on_line = [](const OutputLine&) {}});
  return {.found = fmt::format("built in; {} ranks joined, and their sums were right", kRanks)};
} catch (const RankFailed& error) {
  if (error.failure().signal != SIGALRM) return cannot_train(first_line(error));
  return cannot_train(fmt::format("rank {} of {} hung for {} seconds, and was ended",
                                  error.failure().rank, kRanks, kSecondsToLive));
} catch (const Error& error) {
  return cannot_train(first_line(error));
}

Finding not_built(const BackendRow& row) {
  return {.state = Finding::State::note,
          .found = "not built",
          .advice = fmt::format(
              "{}; until then use shm, for the ranks of one machine (GPUs' tensors pass through "
              "host memory)",
              row.how_to_get)};
}

Finding find_library(const BackendRow& row) try {
  return {.found = fmt::format(fmt::runtime(row.found), row.find_library())};
} catch (const BackendError& error) {
  return {.state = Finding::State::note,
          .found = "built in, but " + first_line(error),
          .advice = "until then use shm or gloo (GPUs' tensors pass through host memory)"};
}

}  // namespace

Finding probe(const BackendRow& row) {
  if (!row.built_in()) return not_built(row);
  return row.trial == BackendRow::Trial::ranks ? probe_with_ranks(std::string(row.name))
                                               : find_library(row);
}

}  // namespace lockstep
