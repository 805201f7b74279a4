// SPDX-License-Identifier: BSD-3-Clause
// Emits progress lines, and times the steps between them.
#include "lockstep/train/progress.h"

#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep {

using Clock = std::chrono::steady_clock;

Progress::Progress(Log log, std::int64_t steps_per_line)
    : log_(std::move(log)), steps_per_line_(steps_per_line) {
  if (steps_per_line < 1) {
    throw UsageError(
        fmt::format("a progress line every {} steps: the number must be positive", steps_per_line));
  }
}

void Progress::step(const std::function<std::string()>& where, const at::Tensor& loss) {
  if (++steps_ % steps_per_line_ != 0) return;
  const double value = loss.item<double>();  // waits for pending work on a GPU
  const std::chrono::duration<double, std::milli> time = Clock::now() - line_start_;
  log_(fmt::format("{}: loss {:.4f}, {:.3f} ms per batch", where(), value,
                   time.count() / static_cast<double>(steps_per_line_)));
  line_start_ = Clock::now();
}

}  // namespace lockstep
