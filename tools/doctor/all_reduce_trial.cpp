// SPDX-License-Identifier: BSD-3-Clause
// All-reduces with known sums.
#include "tools/doctor/all_reduce_trial.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

// One that travels in the call's slot, and one that needs several chunks; small enough that
// libtorch starts no threads for it.
constexpr std::int64_t kFew = 3;
constexpr std::int64_t kMany = 30000;

void reduce_and_check(ProcessGroup& group, const at::Tensor& tensor) {
  tensor.fill_(group.rank() + 1);
  group.all_reduce(tensor).wait();
  const int sum = group.size() * (group.size() + 1) / 2;
  const auto wrong = tensor.ne(sum).sum().item<std::int64_t>();
  if (wrong == 0) return;
  throw Error(
      fmt::format("[{}] all_reduce of {} elements on rank {} of {}: {} of the sums are wrong",
                  group.backend(), tensor.numel(), group.rank(), group.size(), wrong));
}

}  // namespace

void try_all_reduce(ProcessGroup& group) {
  reduce_and_check(group, at::empty({kFew}));
  reduce_and_check(group, at::empty({kMany}));
  reduce_and_check(group, group.empty({kMany}, at::kFloat));
}

}  // namespace lockstep
