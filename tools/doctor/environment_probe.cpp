// SPDX-License-Identifier: BSD-3-Clause
// Judges the variables that tell a process its rank, and their source.
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/net/unix_socket.h"
#include "lockstep/rendezvous/launchers.h"
#include "lockstep/rendezvous/rendezvous.h"
#include "tools/doctor/probes.h"

namespace lockstep {
namespace {

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
