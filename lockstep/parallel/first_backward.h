// SPDX-License-Identifier: BSD-3-Clause
// What a reducer learns from the first backward: the order in which gradients become ready, from
// which all ranks make the same plan of the buckets at its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/parallel/bucket_plan.h"

namespace lockstep {

class ReducerGroup;

// Parameters are counted from 0.
class FirstBackward {
 public:
  FirstBackward(std::size_t parameters, BucketLimits limits)
      : last_ticks_(parameters), limits_(limits) {}

  // Forgets what earlier backwards have accumulated.
  void forget_order() { last_ticks_.assign(last_ticks_.size(), 0); }
  void gradient_accumulated(int parameter) {
    last_ticks_[static_cast<std::size_t>(parameter)] = ++tick_;
  }
  // The state from which the first forward has drawn random numbers, 0 if it drew none.
  void set_first_draw(std::int64_t state) { first_draw_ = state; }

  // Collective. Plans buckets for the parameters in the order that the root of the group's last
  // step has seen. Warns of equal draws; refuses a communication hook that only some ranks have.
  std::vector<PlannedBucket> plan(ReducerGroup& group, std::span<const at::Tensor> parameters,
                                  bool has_hook) const;

 private:
  std::vector<int> last_ticks_;  // when each was last accumulated; 0 if it was not
  int tick_ = 0;
  std::int64_t first_draw_ = 0;
  BucketLimits limits_;
};

}  // namespace lockstep
