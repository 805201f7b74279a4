// SPDX-License-Identifier: BSD-3-Clause
// How ranks can form a group: each backend, the one that auto chooses, and the rank that the
// environment gives this process.
#include <algorithm>
#include <chrono>
#include <future>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include "lockstep/comm/backends.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/net/unix_socket.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/libtorch_compat.h"
#include "lockstep/rendezvous/launchers.h"
#include "lockstep/rendezvous/rendezvous.h"
#include "tools/doctor/probes.h"

namespace lockstep {
namespace {

// The timeout of trial groups: a working one needs milliseconds, and on a busy machine seconds.
constexpr std::chrono::milliseconds kTrialTimeout = std::chrono::seconds(12);
// Elements of a tensor that travels in the call's slot, and of one that needs several chunks. Few
// enough that libtorch starts no threads for them.
constexpr std::int64_t kFew = 3;
constexpr std::int64_t kMany = 30000;

void reduce_and_check(ProcessGroup& group, const at::Tensor& tensor) {
  tensor.fill_(group.rank() + 1);
  group.all_reduce(tensor).wait();
  const int sum = group.size() * (group.size() + 1) / 2;
  const auto wrong = tensor.ne(sum).sum().item<std::int64_t>();
  if (wrong == 0) return;
  throw Error(group.context(group.backend(), "all_reduce"),
              fmt::format("{} of the {} sums are wrong", wrong, tensor.numel()));
}

// Reduces a small and a large tensor and one from group.empty, and checks the sums. Collective.
// Error if a sum is wrong, and the group's own errors.
void try_all_reduce(ProcessGroup& group) {
  reduce_and_check(group, at::empty({kFew}));
  reduce_and_check(group, at::empty({kMany}));
  reduce_and_check(group, group.empty({kMany}, at::kFloat));
}

// Discards the warnings of this thread while it lives: two ranks on one core are fine for a probe.
class WithoutWarnings : private libtorch::WarningReceiver {
 public:
  WithoutWarnings() : guard_(this) {}

 private:
  void receive(const std::string&) override {}

  libtorch::warnings::WarningHandlerGuard guard_;
};

constexpr int kTrialRanks = 2;
constexpr unsigned kSecondsToLive = 30;

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
  spawn(kTrialRanks, join_and_reduce, {.threads = 1, .on_line = [](const OutputLine&) {}});
  return {.found =
              fmt::format("built in; {} ranks joined, and their sums were right", kTrialRanks)};
} catch (const RankFailed& error) {
  if (error.failure().signal != SIGALRM) return cannot_train(first_line(error));
  return cannot_train(fmt::format("rank {} of {} hung for {} seconds, and was ended",
                                  error.failure().rank, kTrialRanks, kSecondsToLive));
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

bool gpu_for_each_of(int local_ranks) {
  return find_gpus().usable >= local_ranks && is_usable(backend_row("nccl"));
}

std::string in_words(const Placement& placement) {
  const Choice choice = choose_backend(placement);
  return fmt::format("{} ({})", choice.backend, choice.why);
}

constexpr const char* kReadByEnv[] = {
    "RANK",        "WORLD_SIZE",  "LOCAL_RANK",    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "LOCKSTEP_STORE"};

// "RANK=0 WORLD_SIZE=2"
std::string settings() {
  std::vector<std::string> set;
  for (const char* name : kReadByEnv) {
    if (const auto value = environment(name)) set.push_back(fmt::format("{}={}", name, *value));
  }
  return fmt::format("{}", fmt::join(set, " "));
}

Finding wrong_settings(const std::string& found) {
  return {.state = Finding::State::broken,
          .found = found,
          .advice = fmt::format("{} is set, by {}: correct that, or unset all of it to train alone",
                                settings(), launcher_of_environment())};
}

std::string around(const std::vector<ForeignLauncher>& launchers) {
  std::string text;
  for (const auto& launcher : launchers) text += "; " + in_words(launcher);
  return text;
}

// For a process that no launcher makes one of several ranks.
Finding judge_alone(const std::vector<ForeignLauncher>& launchers) {
  const std::string found = "no RANK or WORLD_SIZE: a group of one" + around(launchers);
  const auto is_alone = [](const ForeignLauncher& launcher) { return launcher.size == 1; };
  if (std::ranges::all_of(launchers, is_alone)) return {.found = found};
  return {.state = Finding::State::note,
          .found = found,
          .advice =
              "if it is to be one of several ranks, start it with `lockstep run` or another "
              "launcher, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in a script"};
}

}  // namespace

Finding probe_backend(const BackendRow& row) {
  if (!row.built_in()) return not_built(row);
  return row.trial == BackendRow::Trial::ranks ? probe_with_ranks(std::string(row.name))
                                               : find_library(row);
}

Finding probe_thread_backend() {
  const WithoutWarnings quiet;
  const auto groups = make_thread_groups(2, {.timeout = kTrialTimeout});
  auto other = std::async(std::launch::async, [&] { try_all_reduce(*groups[1]); });
  try_all_reduce(*groups[0]);
  other.get();
  return {.found = "built in; 2 threads joined, and their sums were right"};
}

Finding probe_self_backend() {
  try_all_reduce(*make_self_group({.timeout = kTrialTimeout}));
  return {.found = "built in; used by a program that was started alone"};
}

Finding probe_auto_backend() {
  std::optional<Membership> member;
  try {
    member = membership_in_environment();
  } catch (const UsageError&) {
    return {.state = Finding::State::note,
            .found = "unknown while the environment is broken",
            .advice = "fix the finding about the environment first"};
  }
  if (member) {
    const int local = member->local_world_size;
    return {.found = in_words({.ranks = member->world_size,
                               .hosts = (member->world_size + local - 1) / local,
                               .gpu_for_each_rank = gpu_for_each_of(local),
                               .between_hosts = backend_between_hosts()})};
  }
  const bool gpus = gpu_for_each_of(kTrialRanks);
  const Placement here{.ranks = kTrialRanks, .gpu_for_each_rank = gpus};
  const Placement on_two_hosts{.ranks = 2 * kTrialRanks,
                               .hosts = 2,
                               .gpu_for_each_rank = gpus,
                               .between_hosts = backend_between_hosts()};
  return {.found = fmt::format(
              "{} ranks on this machine: {}; the same number on each of two machines: {}",
              kTrialRanks, in_words(here), in_words(on_two_hosts))};
}

Finding probe_environment() {
  std::optional<Membership> member;
  try {
    member = membership_in_environment();
  } catch (const UsageError& error) {
    return wrong_settings(error.what());
  }
  const auto launchers = foreign_launchers();
  if (!member) return judge_alone(launchers);

  const auto store = environment("LOCKSTEP_STORE");
  if (store && member->world_size > 1) {
    try {
      connect_unix(*store, Deadline::after(std::chrono::seconds(2)));
    } catch (const Error& error) {
      return wrong_settings(fmt::format("{}; has the launcher ended?", error.what()));
    }
  }
  const std::string set = settings();
  const bool without_secret =
      member->world_size > member->local_world_size && member->secret.empty();
  return {
      .state = without_secret ? Finding::State::note : Finding::State::ok,
      .found =
          fmt::format("rank {} of {}, local rank {} of {}, by {}{}{}", member->rank,
                      member->world_size, member->local_rank, member->local_world_size,
                      launcher_of_environment(), set.empty() ? "" : ": " + set, around(launchers)),
      .advice =
          without_secret
              ? "the ranks of several machines rendezvous without a secret, so any process that "
                "reaches rank 0's port can join them: give `lockstep run` a --secret-file, or "
                "set LOCKSTEP_SECRET_FILE"
              : ""};
}

}  // namespace lockstep
