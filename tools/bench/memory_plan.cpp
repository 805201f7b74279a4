// SPDX-License-Identifier: BSD-3-Clause
// Counts the tensors of one process, and what it takes beside them.
#include "tools/bench/memory_plan.h"

#include <algorithm>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
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

std::int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

}  // namespace

MemoryPlan plan_memory(const TrainingStep& step, int ranks) {
  MemoryPlan plan{
      .optimizer = step.optimizer, .amp = step.amp, .ranks = ranks, .process = memory_of_process()};
  const auto bytes = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
  Training training(step);
  const std::int64_t before = bytes->live();  // with the batch
  const std::vector<at::Tensor> parameters = distinct_parameters(training.net());
  const std::int64_t buffers = bytes_of(training.net().buffers());
  plan.parameters = bytes_of(parameters);
  std::vector<at::Tensor> trained = parameters;
  std::erase_if(trained, [](const at::Tensor& parameter) { return !parameter.requires_grad(); });
  plan.gradients = bytes_of(trained);
  const std::int64_t batch = before - plan.parameters - buffers;
  training.step();
  plan.state = bytes->live() - before - plan.gradients;
  // The first step has made what lasts.
  const std::int64_t lasting = bytes->live();
  bytes->restart_peak();
  training.step();
  plan.activations = batch + bytes->peak() - lasting;
  plan.kept = std::max<std::int64_t>(0, peak_memory() - plan.of_rank() - buffers);
  if (is_sharded(step.optimizer)) plan.state /= ranks;
  if (step.optimizer == OptimizerKind::one_copy) plan.parameters /= ranks;
  plan.parameters += buffers;
  return plan;
}

}  // namespace lockstep::bench
