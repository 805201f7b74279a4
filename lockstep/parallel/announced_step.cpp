// SPDX-License-Identifier: BSD-3-Clause
// Gathers the ranks' next steps.
#include "lockstep/parallel/announced_step.h"

#include <string_view>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

std::string_view name(JoinStep step) {
  switch (step) {
    case JoinStep::none:
      return "has ended";
    case JoinStep::broadcast_buffers:
      return "runs a forward";
    case JoinStep::reduce_gradients:
      break;
  }
  return "runs a backward";
}

}  // namespace

AnnouncedStep announce_step(ProcessGroup& group, JoinStep mine) {
  AnnouncedStep announced;
  const at::Tensor all =
      at::empty({group.size()}, at::TensorOptions(at::kInt).device(group.device()));
  const at::Tensor own = at::full({1}, static_cast<std::int32_t>(mine), all.options());
  group.all_gather_into_tensor(all, own).wait();
  const at::Tensor steps = all.cpu();
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto step = static_cast<JoinStep>(steps[rank].item<std::int32_t>());
    if (step == JoinStep::none || step == announced.step) continue;
    if (announced.step == JoinStep::none) {
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
