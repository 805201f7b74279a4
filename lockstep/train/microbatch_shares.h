// SPDX-License-Identifier: BSD-3-Clause
// Which of the microbatches each rank computes, and with .balance_load the measurements that they
// follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/tree_sum.h"
#include "lockstep/data/microbatch_plan.h"
#include "lockstep/train/gradient_layout.h"
#include "lockstep/train/load_balance.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

// The runs of the ranks, and the memory for their partial sums. They begin even.
class MicrobatchShares {
 public:
  // Keeps the reference to the group. UsageError if there are fewer microbatches than ranks.
  MicrobatchShares(const TrainerOptions& options, ProcessGroup& group);

  const SumTree& tree() const { return tree_; }
  const std::vector<LeafRange>& of_ranks() const { return runs_; }
  // This rank's plan for microbatches of `size` samples.
  MicrobatchPlan plan(std::int64_t size) const;
  // For the partial sums of this rank; empty if there is a single rank.
  const std::vector<at::Tensor>& memory() const { return memory_; }
  // Collective. Makes memory() anew if the present one is too small, or of another type.
  void renew_memory(const GradientLayout& layout);

  // How many ranks measure their load: none without .balance_load, or if nothing can be moved.
  int measured_ranks() const { return meter_ ? group_.size() : 0; }
  // What this rank does from now on. Like the following ones, does nothing if nothing is measured.
  void begin(LoadMeter::Activity activity);
  // Discards what is measured of the present step.
  void forget_step();
  // Counts a step of `microbatches` microbatches, unless `is_whole` is false, and writes this
  // rank's load to its partial sum. The exchange begins.
  void send_load(const GradientLayout& layout, const at::Tensor& partial, std::size_t microbatches,
                 bool is_whole);
  // The exchange has ended.
  void end_exchange();
  // Takes the loads of all ranks. Has a decision for change() every 16 steps.
  void decide(std::vector<RankLoad> loads);
  // Collective. Adopts what the last decide() has found better, unless there is no memory for it.
  // Returns a line about it; nullopt if the shares stay.
  std::optional<std::string> change(const GradientLayout& layout);

 private:
  ProcessGroup& group_;
  SumTree tree_;
  std::vector<LeafRange> runs_;
  std::vector<at::Tensor> memory_;
  std::optional<LoadMeter> meter_;
  std::vector<LeafRange> better_runs_;  // empty if there are none
  std::vector<RankLoad> loads_;         // what they follow from
};

}  // namespace lockstep
