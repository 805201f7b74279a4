// SPDX-License-Identifier: BSD-3-Clause
// Ranks of spawn() that run the same program again, like the method "spawn" of Python's
// multiprocessing: with the arguments, environment and folder that it was started with, until it
// reaches the same call.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/rank_environment.h"

namespace lockstep {

// The data of a rank that runs the program again. The rank applies it at its call, not when it
// starts: until then the program must find the machine as its parent did.
struct RankStart {
  // The index of its call among the program's calls of spawn(), from 0.
  int call = 0;
  std::string which{};
  int rank = 0;
  EnvironmentVariables variables{};
  // The cores that it is limited to.
  std::vector<int> cores{};
  std::optional<int> threads{};
  // How the earlier calls ended, packed by SpawnOutcomes in spawn.cpp.
  std::string earlier{};
};

std::chrono::milliseconds time_since_load();

// Why no rank can be started anew here; empty if one can. Only the process that runs main from its
// start can be run again: not one forked from it, nor a rank inside its function.
std::string why_not_anew();

// In a forked rank: executes this program anew, and passes it the rank's end of the pipe for its
// last words. RankExit if it cannot be executed.
[[noreturn]] void start_anew(const RankStart& start, const UniqueFd& last_words);

// This process's RankStart, if it is such a rank and has not reached its call yet; otherwise null.
const RankStart* started_anew();

// Call it when the rank reaches its call: applies its RankStart, runs the function, and ends the
// process like a forked rank.
[[noreturn]] void end_as_rank(const std::function<void()>& function);

// Records that this process is inside a rank's function from now on, and whether it is.
void enter_rank();
bool in_rank();

}  // namespace lockstep
