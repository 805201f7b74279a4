// SPDX-License-Identifier: BSD-3-Clause
// Measures the cost of a training step with DistributedDataParallel against one process and against
// the floor: the same number of independent training runs side by side, where a step ends when all
// have ended. Repeats this for several optimizers, types of mixed precision and communication
// hooks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "tools/bench/training.h"

namespace lockstep::bench {

enum class StepMode : std::uint8_t { single, floor, ddp };

std::string_view name(StepMode mode);

struct StepRow {
  OptimizerKind optimizer = OptimizerKind::torch;
  AmpKind amp = AmpKind::none;
  StepMode mode = StepMode::single;
  CommHookKind comm_hook = CommHookKind::none;
  int ranks = 1;
  double us_p10 = 0;
  double us_median = 0;
  double us_p90 = 0;
  // The peak memory of the rank with the most, as peak_memory() counts it, in 10^6 bytes.
  std::optional<double> peak_mb = {};
};

// For each optimizer and type, one row for single, one for the floor, and one of DDP for each hook.
// A sharded optimizer has only the rows of DDP.
using StepRows = std::vector<StepRow>;

// All combinations are measured.
struct StepChoices {
  std::vector<OptimizerKind> optimizers = {OptimizerKind::torch};
  std::vector<AmpKind> amps = {AmpKind::none};
  std::vector<CommHookKind> comm_hooks = {CommHookKind::none};
};

// Measures the modes with each of the choices, alternating between them; the step's own choices
// have no effect. Collective, with the same arguments on every rank; blocks for some seconds per
// combination. Leaves peak_mb empty. Between turns, rank 0 calls on_turn with the number of turns
// done and of all turns.
StepRows measure_steps(const std::shared_ptr<ProcessGroup>& group, const TrainingStep& step,
                       const StepChoices& choices = {},
                       const std::function<void(int done, int all)>& on_turn = {});

// Trains some steps in this mode, and returns this rank's peak in bytes. Collective; single needs a
// group of one. Run it in a process that has done nothing else.
std::int64_t measure_step_memory(const std::shared_ptr<ProcessGroup>& group,
                                 const TrainingStep& step, StepMode mode);

}  // namespace lockstep::bench
