// SPDX-License-Identifier: BSD-3-Clause
// Gathers the next steps of the ranks, and decides by the error which hint to add.
#include "lockstep/parallel/uneven_batches.h"

#include <string_view>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/comm/core/call.h"
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

constexpr const char* kSameNumber =
    "give every rank the same number (DistributedSampler pads or drops), or train inside "
    "lockstep::join";

// Empty if different numbers of batches cannot be the cause: a rank died, or the system refused.
std::string hint() {
  const std::string general = fmt::format(
      ". If no rank reports an error of its own, they may have different numbers of batches: {}",
      kSameNumber);
  try {
    throw;
  } catch (const PeerLost& error) {
    return error.how() == PeerLost::How::left ? general : "";
  } catch (const BackendError&) {
    return "";
  } catch (const CallsDiffer& error) {
    const CallOrigin others = error.peers_call().origin;
    if (others == CallOrigin::program || is_of_step(others)) return general;
    return fmt::format(". Or rank {} came to {} since it has fewer batches: {}", error.peer(),
                       name(others), kSameNumber);
  } catch (...) {
    return general;
  }
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
    throw UsageError(group.context("join"),
                     fmt::format("rank {} {} of the model while rank {} {}", announced.root,
                                 name(announced.step), rank, name(step)),
                     "ranks with batches left must all make the same calls");
  }
  return announced;
}

void rethrow_within_batches(const ErrorContext& context) {
  rethrow_within(context, hint());
}

}  // namespace lockstep
