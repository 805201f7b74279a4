// SPDX-License-Identifier: BSD-3-Clause
// Ranks of spawn() that are new processes of the same program, as Python's multiprocessing starts
// them by its method "spawn": the program runs again, with the arguments, environment and folder
// that it was started with, until it comes to the same call.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/rank_environment.h"

namespace lockstep {

// What a rank needs for its call. It takes this up at the call, not when it starts: until then the
// program must find the machine as its parent did.
struct RankStart {
  // Which of the program's calls of spawn() it is a rank of, from 0.
  int call = 0;
  std::string which{};
  int rank = 0;
  EnvironmentVariables variables{};
  // Which cores it is limited to.
  std::vector<int> cores{};
  std::optional<int> threads{};
  // How the earlier calls ended: spawn_outcomes.h packs it.
  std::string earlier{};
};

std::chrono::milliseconds time_since_load();

// Why no rank can be started anew here; empty if ranks can. Only the process that runs main from
// its beginning can be run again: not one that was forked from it, nor a rank within its function.
std::string why_not_anew();

// In a forked rank: becomes this program, executed anew with the rank's end of the pipe for its
// last words. RankExit if it cannot be executed.
[[noreturn]] void start_anew(const RankStart& start, const UniqueFd& last_words);

// What this process was started with, if it is such a rank and has not come to its call yet.
const RankStart* started_anew();

// The rank has come to its call: takes up what it was started with, runs the function, and ends the
// process as a forked rank ends.
[[noreturn]] void end_as_rank(const std::function<void()>& function);

// Tells why_not_anew() that this process is in a rank's function from now on.
void enter_rank();

}  // namespace lockstep
