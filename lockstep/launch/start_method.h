// SPDX-License-Identifier: BSD-3-Clause
// How spawn() starts ranks: by a fork, if this process may fork them, or by running the program
// again, like the method "spawn" of Python's multiprocessing: with the arguments, environment and
// folder that it was started with, until it reaches the same call.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/environment.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep {

// False if this process has threads that it did not have when it was loaded: a forked rank would
// hang in libtorch's first operation. Debian's OpenBLAS starts its threads at load and ends them
// before a fork; threads that it starts later count as new. Also false if the process has opened a
// GPU, since CUDA does not work in a fork of a process that has used it. Also false without /proc,
// since then the threads are unknown.
bool may_fork();

// UsageError because of the threads or the GPU, BackendError without /proc. The message begins with
// the call, such as "spawn(2)", and ends with the remedies.
void require_may_fork(const std::string& call);

// The data of a rank that runs the program again. The rank applies it at its call, not when it
// starts: until then the program must find the machine as its parent did.
struct RankStart {
  // The index of its call among the program's calls of spawn(), from 0.
  int call = 0;
  // The call and its function, to compare with the call that the rank makes.
  std::string which{};
  int rank = 0;
  EnvironmentVariables variables{};
  // The cores that it is limited to.
  std::vector<int> cores{};
  std::optional<int> threads{};
  // How the earlier calls ended, packed by SpawnOutcomes in spawn.cpp.
  std::string earlier{};
};

// The time since this program was loaded.
std::chrono::milliseconds time_since_load();

// Why no rank can run this program again; empty if one can. Only the process that runs main from
// its start can be run again: not one forked from it, nor a rank inside its function.
std::string why_no_rerun();

// In a forked rank: executes this program again, and passes it the rank's end of the pipe for its
// last words. RankExit if it cannot be executed.
[[noreturn]] void rerun_program(const RankStart& start, const UniqueFd& last_words);

// This process's RankStart, if it is a rank that runs the program again and has not reached its
// call yet; otherwise null.
const RankStart* pending_start();

// Call it when the rank reaches its call: applies its RankStart, runs the function, and ends the
// process like a forked rank.
[[noreturn]] void end_as_rank(const std::function<void()>& function);

// Records that this process is inside a rank's function from now on.
void enter_rank();
// Whether enter_rank() has been called.
bool in_rank();

}  // namespace lockstep
