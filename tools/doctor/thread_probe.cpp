// SPDX-License-Identifier: BSD-3-Clause
// A group of two threads.
#include <future>

#include "lockstep/comm/single_process_groups.h"
#include "tools/doctor/all_reduce_trial.h"
#include "tools/doctor/probes.h"
#include "tools/doctor/without_warnings.h"

namespace lockstep {

Finding probe_thread() {
  const WithoutWarnings quiet;
  const auto groups = make_thread_groups(2, {.timeout = kTrialTimeout});
  auto other = std::async(std::launch::async, [&] { try_all_reduce(*groups[1]); });
  try_all_reduce(*groups[0]);
  other.get();
  return {.found = "built in; 2 threads joined, and their sums were right"};
}

}  // namespace lockstep
