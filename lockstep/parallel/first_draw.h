// SPDX-License-Identifier: BSD-3-Clause
// Records the state from which a model's first forward draws random numbers.
#pragma once

#include <cstdint>

#include <c10/core/Device.h>

namespace lockstep {

class FirstDraw {
 public:
  // Looks at libtorch's default generator for this device.
  explicit FirstDraw(at::Device device) : device_(device) {}

  void before_forward() { before_ = state_hash(); }
  // A hash of the state from which the forward has drawn; 0 if it drew nothing.
  std::int64_t after_forward() const { return state_hash() == before_ ? 0 : before_; }

 private:
  std::int64_t state_hash() const;

  at::Device device_;
  std::int64_t before_ = 0;
};

}  // namespace lockstep
