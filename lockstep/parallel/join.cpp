// SPDX-License-Identifier: BSD-3-Clause
// Takes part in the steps of ranks that have more batches.
#include "lockstep/parallel/join.h"

#include <exception>
#include <string_view>

#include <fmt/format.h>

#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/parallel/backward_reduction.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/parallel/errors.h"
#include "lockstep/parallel/uneven_batches.h"

namespace lockstep {
namespace {

// Follows the others' steps until no rank has batches left.
template <class FollowStep>
void follow_all(const FollowStep& follow_step, const std::function<void()>& follow) {
  for (;;) {
    JoinStep step;
    try {
      step = follow_step();
    } catch (const NonFiniteGradient&) {
      continue;  // Every rank has this error. Those with batches decide whether they skip the step.
    }
    if (step == JoinStep::none) return;
    if (step == JoinStep::reduce_gradients) follow();
  }
}

// The others wait for this rank's next step.
void end_group(ProcessGroup& group, std::string_view why) noexcept {
  try {
    const ErrorContext context = group.context("join");
    group.abort(fmt::format("{}ended with an exception: {}", context.prefix(), why));
  } catch (...) {
    // Then the peers notice when this rank leaves the group, or at their deadline.
  }
}

}  // namespace

void join(DistributedDataParallelBase& model, const std::function<void()>& body,
          const std::function<void()>& follow) {
  ProcessGroup& group = *model.group();
  if (group.size() == 1) return body();
  const auto drop_gradients = [&] {
    for (const at::Tensor& parameter : distinct_parameters(model)) parameter.mutable_grad().reset();
  };
  ReducerGroup& steps = model.reducer_.reduction()->group();
  steps.announce_steps(true);
  try {
    body();
    follow_all([&] { return model.follow_step(); }, follow ? follow : drop_gradients);
  } catch (const std::exception& error) {
    steps.announce_steps(false);
    end_group(group, short_message(error));
    throw;
  } catch (...) {
    steps.announce_steps(false);
    end_group(group, "not derived from std::exception");
    throw;
  }
  steps.announce_steps(false);
  const CallScope scope(CallOrigin::join);
  model.broadcast_state(steps.last_root());
}

}  // namespace lockstep
