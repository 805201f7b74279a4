// SPDX-License-Identifier: BSD-3-Clause
// Seeds, prints and averages with the number of the rank.
#include "lockstep/train/over_ranks.h"

#include <cstdio>
#include <string>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <torch/utils.h>

#include "lockstep/comm/types/call_origin.h"

namespace lockstep {

void seed_everything(std::uint64_t seed, const ProcessGroup& group) {
  torch::manual_seed(seed + static_cast<std::uint64_t>(group.rank()));
}

void seed_everything(std::uint64_t seed, const std::shared_ptr<ProcessGroup>& group) {
  seed_everything(seed, GroupArgument(group).get());
}

void print0(const ProcessGroup& group, std::string_view line) {
  if (group.rank() != 0) return;
  // No exception: a full disk costs the line, not the training.
  const std::string whole = std::string(line) + '\n';
  std::fwrite(whole.data(), 1, whole.size(), stdout);
  std::fflush(stdout);
}

void print0(const std::shared_ptr<ProcessGroup>& group, std::string_view line) {
  print0(GroupArgument(group).get(), line);
}

at::Tensor mean_over_ranks(const at::Tensor& sums, const at::Tensor& samples,
                           GroupArgument argument) {
  const CallScope scope(CallOrigin::mean_over_ranks);
  ProcessGroup& group = argument.get();
  const at::NoGradGuard no_grad;
  // Sums and counts travel in one all-reduce.
  const at::Tensor both =
      at::stack({sums.to(at::kCPU, at::kDouble), samples.to(at::kCPU, at::kDouble)});
  group.all_reduce(both).wait();
  return both[0] / both[1];
}

}  // namespace lockstep
