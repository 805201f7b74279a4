// SPDX-License-Identifier: BSD-3-Clause
// One seed for each rank.
#include <torch/utils.h>

#include "lockstep/comm/group_argument.h"
#include "lockstep/train/over_ranks.h"

namespace lockstep {

void seed_everything(std::uint64_t seed, const ProcessGroup& group) {
  torch::manual_seed(seed + static_cast<std::uint64_t>(group.rank()));
}

void seed_everything(std::uint64_t seed, const std::shared_ptr<ProcessGroup>& group) {
  seed_everything(seed, GroupArgument(group).get());
}

}  // namespace lockstep
