// SPDX-License-Identifier: BSD-3-Clause
// `lockstep resize`: asks the launcher of an elastic job for another number of ranks. A request and
// its answer are keys in the launcher's store, which only its user can reach.
#pragma once

#include <functional>
#include <string>

namespace lockstep {

class LocalStoreServer;

// The key under which the launcher of an elastic job tells its run's id.
inline constexpr const char* kRunIdKey = "lockstep/run_id";

struct ResizeAnswer {
  // Whether the job is to have so many ranks.
  bool follows = false;
  // What the user is told.
  std::string text{};
};

// What a launcher knows of its job when it is asked.
struct ResizableJob {
  int least = 1;
  int most = 1;
  // How many ranks it is to have until now.
  int ranks = 1;
  // Whether fewer are there, since not all that were lost were replaced.
  bool misses_ranks = false;
  // Whether a rank has completed the training.
  bool finished = false;
};

// The answer to a request for so many ranks.
ResizeAnswer answer_to_resize(const ResizableJob& job, int ranks);

// The launcher's side: takes the requests that have come into its store, asks for the answer to
// each and sends it. Does not block.
void answer_resize_requests(LocalStoreServer& store,
                            const std::function<ResizeAnswer(int ranks)>& decide);

// Asks the job's launcher on this machine, and returns its answer: "4 ranks instead of 2: newcomers
// join at the end of a step". `job`: the pid of the launcher, or the run's id, which its ranks have
// in TORCHELASTIC_RUN_ID; a number that is both is an id. The job follows later. UsageError if
// there is no such job, if it belongs to another user or is not elastic, and if the launcher
// refuses. TimeoutError if it does not answer within ten seconds.
std::string ask_to_resize(const std::string& job, int ranks);

}  // namespace lockstep
