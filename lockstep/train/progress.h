// SPDX-License-Identifier: BSD-3-Clause
// Public. Progress lines for a training loop.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include <ATen/core/Tensor.h>

namespace lockstep {

// Emits a line every steps_per_line steps: "epoch 1/2, step 100/938: loss 0.4312, 0.345 ms per
// batch". The time is the mean since the previous line, or since the object was made. Not
// thread-safe.
class Progress {
 public:
  using Log = std::function<void(const std::string&)>;

  // Each line goes to `log`, on the thread that calls step(). UsageError if steps_per_line is not
  // positive. Usually only one rank needs a Progress.
  explicit Progress(Log log, std::int64_t steps_per_line = 100);

  // Call it after each step. `where` returns the start of the line, "epoch 1/2, step 100/938".
  // `loss` has one element, on any device; only a step with a line waits for it.
  void step(const std::function<std::string()>& where, const at::Tensor& loss);

 private:
  Log log_;
  std::int64_t steps_per_line_;
  std::int64_t steps_ = 0;
  std::chrono::steady_clock::time_point line_start_ = std::chrono::steady_clock::now();
};

}  // namespace lockstep
