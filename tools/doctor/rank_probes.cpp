// SPDX-License-Identifier: BSD-3-Clause
// Probes the backends whose ranks are processes.
#include "tools/doctor/all_reduce_trial.h"
#include "tools/doctor/probes.h"
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include "lockstep/comm/backends.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/launch/spawn.h"

namespace lockstep {
namespace {

constexpr int ranks = 2;
constexpr unsigned seconds_to_live = 15;

// Ends a rank that hangs where the group's timeout does not apply, such as in libtorch.
void die_if_stuck() {
  ::signal(SIGALRM, SIG_DFL);
  sigset_t alarm;
  ::sigemptyset(&alarm);
  ::sigaddset(&alarm, SIGALRM);
  ::sigprocmask(SIG_UNBLOCK, &alarm, nullptr);
  ::alarm(seconds_to_live);
}

Finding cannot_train(const std::string& found) {
  return {.state = Finding::State::broken,
          .found = found,
          .advice = "until that is mended, processes of this machine cannot train together"};
}

Finding probe_with_ranks(const std::string& backend) try {
  const auto join_and_reduce = [&backend](int) {
    die_if_stuck();
    const auto group =
        init_process_group({.backend = backend, .timeout = trial_timeout, .device = at::kCPU});
    try_all_reduce(*group);
  };
  spawn(ranks, join_and_reduce, {.threads = 1, .on_line = [](const OutputLine&) {}});
  return {.found = fmt::format("built in; {} ranks joined, and their sums were right", ranks)};
} catch (const RankFailed& error) {
  if (error.failure().signal != SIGALRM) return cannot_train(first_line(error));
  return cannot_train(fmt::format("rank {} of {} hung for {} seconds, and was ended",
                                  error.failure().rank, ranks, seconds_to_live));
} catch (const Error& error) {
  return cannot_train(first_line(error));
}

}  // namespace

Finding probe_shm() {
  return probe_with_ranks("shm");
}

Finding probe_gloo() {
  const BackendRow& gloo = backend_row("gloo");
  return gloo.built_in() ? probe_with_ranks("gloo") : not_built(gloo);
}

Finding probe_mpi() {
  const BackendRow& mpi = backend_row("mpi");
  if (!mpi.built_in()) return not_built(mpi);
  return {.found = fmt::format("built in, with {}; its ranks are started by mpirun or srun",
                               mpi.find_library())};
}

}  // namespace lockstep
