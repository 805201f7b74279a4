// SPDX-License-Identifier: BSD-3-Clause
// One seed for each rank.
#include "lockstep/train/seed.h"

#include <torch/utils.h>

namespace lockstep {

void seed_everything(std::uint64_t seed, const ProcessGroup& group) {
  torch::manual_seed(seed + static_cast<std::uint64_t>(group.rank()));
}

}  // namespace lockstep
