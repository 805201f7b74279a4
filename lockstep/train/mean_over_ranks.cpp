// SPDX-License-Identifier: BSD-3-Clause
// Sums and counts travel in one all-reduce.
#include "lockstep/train/mean_over_ranks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>

namespace lockstep {

at::Tensor mean_over_ranks(const at::Tensor& sums, const at::Tensor& samples,
                           GroupArgument argument) {
  ProcessGroup& group = argument.get();
  const at::NoGradGuard no_grad;
  at::Tensor both =
      at::stack({sums.detach().to(at::kDouble), samples.detach().to(sums.device(), at::kDouble)});
  both = both.to(group.device());
  group.all_reduce(both).wait();
  both = both.cpu();
  return both[0] / both[1];
}

}  // namespace lockstep
