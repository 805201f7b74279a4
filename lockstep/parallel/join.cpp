// SPDX-License-Identifier: BSD-3-Clause
// Takes part in the steps of ranks that have more batches.
#include "lockstep/parallel/join.h"

#include <exception>

#include <fmt/format.h>

#include "lockstep/parallel/announced_step.h"
#include "lockstep/parallel/finite_gradients.h"

namespace lockstep {
namespace {

// Follows the others' steps until no rank has batches left.
template <class FollowStep>
void follow_all(const FollowStep& follow_step, const std::function<void()>& follow) {
  for (;;) {
    try {
      const Step step = follow_step();
      if (step == Step::none) return;
      if (step == Step::reduce_gradients && follow) follow();
    } catch (const NonFiniteGradient&) {
      // Every rank has this error. Those with batches decide whether they skip the step.
    }
  }
}

}  // namespace

void join(DistributedDataParallelBase& model, const std::function<void()>& body,
          const std::function<void()>& follow) {
  ProcessGroup& group = *model.group();
  if (group.size() == 1) return body();
  model.announce_steps(true);
  try {
    body();
    follow_all([&] { return model.follow_step(); }, follow);
  } catch (const std::exception& error) {
    // The others wait for this rank's next step.
    group.abort(fmt::format("[join] rank {} of {} has ended with an exception: {}", group.rank(),
                            group.size(), error.what()));
    throw;
  }
  model.announce_steps(false);
  model.broadcast_state(model.last_root());
}

}  // namespace lockstep
