// SPDX-License-Identifier: BSD-3-Clause
// Carries a Trainer's sharded optimizer over to other ranks, or to a model that is wrapped anew:
// each rank takes the whole state, which is then divided again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/train/trainer_step.h"

namespace lockstep {

// Between gather() or recover() and divide(), the step has an optimizer of libtorch with the whole
// state. Does nothing, and recovers nothing, for an optimizer that is not to be sharded.
class OptimizerShards {
 public:
  // Makes the optimizer over the ranks that train. Collective.
  using Make = std::function<std::unique_ptr<torch::optim::Optimizer>()>;

  // Keeps a reference to the step.
  explicit OptimizerShards(TrainerStep& step) : step_(step) {}

  // Call it when the step has got its optimizer. `make` is null if the program has made it.
  void use(Make make, bool shards);
  bool can_make() const { return make_ != nullptr; }
  // Whether each rank has only a share of the state.
  bool are_divided() const;
  // The ranks of this group train from here, after `steps`.
  void begin(std::int64_t steps, const ProcessGroup& group);

  // Collective over that group, between steps, while all its ranks live.
  void gather(ProcessGroup& group);

  struct Recovered {
    // Whether this rank has the state of the steps that it has completed. Otherwise, the step has
    // an optimizer without state.
    bool has_state = false;
    // If the state comes from memory that the ranks shared: the number of steps that it contains,
    // of which this rank has counted as many, or one less.
    std::optional<std::int64_t> steps = {};
    // Nobody has a state, since each rank had a share in memory of its own. The lost ranks are
    // those of the group before, as far as this one lacks them.
    bool is_lost = false;
    std::vector<int> lost_ranks = {};
  };
  // Collective over the ranks that go on, after others were lost or have joined. `has_state`: false
  // on a newcomer. After an error of the group, it can be called again, with the next group.
  Recovered recover(ProcessGroup& group, bool has_state);

  // Call it before the module is wrapped anew: if a rank dies while the weights move to memory of
  // all ranks, recover() gives them back.
  void keep_weights();
  // Collective, once the module is wrapped. Each rank keeps its share of the state, in a new
  // optimizer. Does nothing if they are divided.
  void divide(std::int64_t steps, const ProcessGroup& group);
  // A step is about to be updated, so all ranks have divided the state.
  void begin_update();

 private:
  enum class Holding : std::int32_t { nothing, share, mapped_share, whole };
  // What a rank says of itself.
  struct Rank {
    Holding holding = Holding::nothing;
    int rank = 0;  // in the group before
    int ranks = 0;
  };

  optim::ShardedOptimizer* sharded() const;
  Holding holding(bool has_state) const;
  void take_back();
  void take_without_state();
  std::optional<std::int64_t> recover_from(const std::vector<Rank>& all, ProcessGroup& group);

  TrainerStep& step_;
  Make make_;
  bool shards_ = false;
  std::int64_t first_step_ = 0;
  int rank_ = 0;
  int ranks_ = 1;
  // From keep_weights() and divide() to begin_update().
  std::vector<at::Tensor> kept_weights_;
  std::unique_ptr<torch::optim::Optimizer> kept_state_;
  // While this rank waits for the state of another one, until divide().
  std::unique_ptr<torch::optim::Optimizer> own_share_;
};

}  // namespace lockstep
