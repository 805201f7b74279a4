// SPDX-License-Identifier: BSD-3-Clause
// Counts the bytes of tensors in the memory of the CPU, as libtorch's profiler does: what a thread
// has allocated and not freed, and the most that it had at once.
#pragma once

#include <algorithm>
#include <cstdint>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "lockstep/libtorch_compat.h"

namespace lockstep::bench {

// Counts while a c10::DebugInfoGuard(c10::DebugInfoKind::PROFILER_STATE, ...) holds it. Tensors
// that existed before and are freed meanwhile are subtracted.
class LiveBytes final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*pointer*/, std::int64_t bytes,
                         libtorch::ReportedTotal /*allocated*/,
                         libtorch::ReportedTotal /*reserved*/, c10::Device device) override {
    if (!device.is_cpu()) return;
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::int64_t live() const { return live_; }
  std::int64_t peak() const { return peak_; }
  // The peak is that from now on.
  void restart_peak() { peak_ = live_; }

 private:
  std::int64_t live_ = 0;
  std::int64_t peak_ = 0;
};

}  // namespace lockstep::bench
