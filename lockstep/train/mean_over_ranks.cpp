// SPDX-License-Identifier: BSD-3-Clause
// Sums and counts travel in one all-reduce.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>

#include "lockstep/comm/types/call_origin.h"
#include "lockstep/train/over_ranks.h"

namespace lockstep {

at::Tensor mean_over_ranks(const at::Tensor& sums, const at::Tensor& samples,
                           GroupArgument argument) {
  const CallScope scope(CallOrigin::mean_over_ranks);
  ProcessGroup& group = argument.get();
  const at::NoGradGuard no_grad;
  const at::Tensor both =
      at::stack({sums.to(at::kCPU, at::kDouble), samples.to(at::kCPU, at::kDouble)});
  group.all_reduce(both).wait();
  return both[0] / both[1];
}

}  // namespace lockstep
