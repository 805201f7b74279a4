// SPDX-License-Identifier: BSD-3-Clause
// Counts the tensors of one process.
#include "tools/bench/memory_plan.h"

#include <memory>

#include <torch/nn/module.h>

#include "lockstep/core/process/memory.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "tools/bench/live_bytes.h"

namespace lockstep::bench {
namespace {

// What libraries keep from their first use on.
std::int64_t memory_of_process() {
  Training smallest({.model = find_model("linear")});
  smallest.step();
  reset_peak_memory();
  return peak_memory();
}

}  // namespace

MemoryPlan plan_memory(const TrainingStep& step, int ranks) {
  MemoryPlan plan{
      .optimizer = step.optimizer, .amp = step.amp, .ranks = ranks, .process = memory_of_process()};
  const auto bytes = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
  Training training(step);
  const std::int64_t before = bytes->live();  // with the batch
  for (const at::Tensor& parameter : distinct_parameters(training.net())) {
    plan.parameters += static_cast<std::int64_t>(parameter.nbytes());
    if (parameter.requires_grad()) plan.gradients += static_cast<std::int64_t>(parameter.nbytes());
  }
  for (const at::Tensor& buffer : training.net().buffers()) {
    plan.parameters += static_cast<std::int64_t>(buffer.nbytes());
  }
  const std::int64_t batch = before - plan.parameters;
  training.step();
  plan.state = bytes->live() - before - plan.gradients;
  if (is_sharded(step.optimizer)) plan.state /= ranks;
  // The first step has made what lasts.
  const std::int64_t lasting = bytes->live();
  bytes->restart_peak();
  training.step();
  plan.activations = batch + bytes->peak() - lasting;
  return plan;
}

}  // namespace lockstep::bench
