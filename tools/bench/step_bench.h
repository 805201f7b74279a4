// SPDX-License-Identifier: BSD-3-Clause
// What a training step of DistributedDataParallel costs, beside one process and beside the floor:
// as many single trainings side by side, where a step ends when all have ended.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "tools/bench/training.h"

#include "lockstep/comm/process_group.h"

namespace lockstep::bench {

enum class StepMode : std::uint8_t { single, floor, ddp };

std::string_view name(StepMode mode);

struct StepRow {
  StepMode mode = StepMode::single;
  int ranks = 1;
  double us_p10 = 0;
  double us_median = 0;
  double us_p90 = 0;
  // Of a rank, the fullest: see peak_memory(). In 10^6 bytes.
  std::optional<double> peak_mb = {};
};

// One for each mode, in their order.
using StepRows = std::array<StepRow, 3>;

// Measures the modes in turns. A collective call, with the same arguments on every rank;
// blocks for some seconds. peak_mb is left out.
StepRows measure_steps(const std::shared_ptr<ProcessGroup>& group, const TrainingStep& step);

// Trains some steps in this mode, and returns the peak of this rank in bytes. A collective call;
// single wants a group of one. For a process that has done nothing else.
std::int64_t measure_step_memory(const std::shared_ptr<ProcessGroup>& group,
                                 const TrainingStep& step, StepMode mode);

}  // namespace lockstep::bench
