// SPDX-License-Identifier: BSD-3-Clause
// Gathers the ranks' next steps.
#include "lockstep/parallel/announced_step.h"

#include <fmt/format.h>

#include "lockstep/comm/objects.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

std::string_view name(Step step) {
  return step == Step::broadcast_buffers ? "runs a forward" : "runs a backward";
}

}  // namespace

AnnouncedStep announce_step(ProcessGroup& group, Step mine) {
  AnnouncedStep announced;
  const std::vector<Step> steps = all_gather_object(mine, group);
  for (int rank = 0; rank < group.size(); ++rank) {
    const Step step = steps[static_cast<std::size_t>(rank)];
    if (step == Step::none || step == announced.step) continue;
    if (announced.step == Step::none) {
      announced = {step, rank};
      continue;
    }
    throw UsageError(fmt::format(
        "[join] rank {} of {}: rank {} {} of the model while rank {} {}. Ranks with batches left "
        "must all make the same calls",
        group.rank(), group.size(), announced.root, name(announced.step), rank, name(step)));
  }
  return announced;
}

}  // namespace lockstep
