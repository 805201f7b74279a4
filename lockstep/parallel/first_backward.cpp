// SPDX-License-Identifier: BSD-3-Clause
// Broadcasts the order of one rank, and plans the buckets by it.
#include "lockstep/parallel/first_backward.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/parallel/misuse_checks.h"
#include "lockstep/parallel/reducer_group.h"

namespace lockstep {

// The order that the root saw decides. The root is rank 0, or in join() the first rank with batches
// left. Ranks may see different orders: in independent branches of the graph, and for parameters
// that only some ranks use.
std::vector<PlannedBucket> FirstBackward::plan(ReducerGroup& group,
                                               std::span<const at::Tensor> parameters,
                                               bool has_hook) const {
  std::vector<std::int64_t> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  const auto when = [this](std::int64_t number) {
    const int last = last_ticks_[static_cast<std::size_t>(number)];
    return last > 0 ? last : tick_ + 1;  // unused ones last
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return when(a) < when(b); });
  order.push_back(first_draw_);
  order.push_back(has_hook ? 1 : 0);
  const int root = group.last_root();
  const at::Tensor shared = at::tensor(order, at::kLong).to(group->device());
  group->broadcast(shared, root).wait();
  const at::Tensor local = shared.cpu();
  const std::int64_t* values = local.data_ptr<std::int64_t>();
  const std::vector<int> agreed(values, values + parameters.size());
  if (root == 0) warn_of_equal_draws(*group, first_draw_, values[parameters.size()]);
  const auto words = [](bool has) {
    return has ? "a communication hook" : "no communication hook";
  };
  const bool root_has_hook = values[parameters.size() + 1] != 0;
  if (root_has_hook != has_hook) {
    group.refuse(
        fmt::format("rank {} has {}, this rank {}", root, words(root_has_hook), words(has_hook)),
        "register the same on every rank");
  }

  std::vector<GradientSize> sizes;
  for (const at::Tensor& tensor : parameters) {
    sizes.push_back({tensor.numel(), tensor.scalar_type(), tensor.device()});
  }
  return plan_buckets(sizes, agreed, limits_);
}

}  // namespace lockstep
