// SPDX-License-Identifier: BSD-3-Clause
// Reads the peak memory of a process or a GPU.
#include "tools/recipes/observation.h"

#include "lockstep/core/process/memory.h"
#include "lockstep/libtorch_compat.h"

namespace lockstep {

std::optional<double> PeakGauge::megabytes() {
  const auto now = std::chrono::steady_clock::now();
  if (read_at_ && now - *read_at_ < std::chrono::seconds(1)) return megabytes_;
  const auto bytes =
      device_.is_cpu() ? std::optional(peak_memory()) : libtorch::peak_memory(device_);
  megabytes_ = bytes ? std::optional(static_cast<double>(*bytes) / 1e6) : std::nullopt;
  read_at_ = now;
  return megabytes_;
}

}  // namespace lockstep
