// SPDX-License-Identifier: BSD-3-Clause
// Warns of gradients that are not reduced, and of ranks that draw the same random numbers.
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>

#include "lockstep/libtorch_version.h"
#include "lockstep/parallel/backward_reduction.h"

namespace lockstep {

// A backward may compute gradients of a penalty, say, before it enters through an output of the
// model; it then reduces them, too. And the backward of a penalty alone may come before another
// that does. So this warns only at the second backward in a row that has reduced nothing. All ranks
// run the same program: rank 0 warns.
void BackwardReduction::note_bypass(const Parameter& parameter) {
  const bool may_warn = warns_of_bypass_ && group_->size() > 1 && group_->rank() == 0;
  if (bypassed_ || !may_warn) return;
  bypassed_ = true;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [self = weak_from_this(), name = parameter.name] {
        if (const auto reduction = self.lock()) reduction->end_of_bypass(name);
      });
}

void BackwardReduction::end_of_bypass(const std::string& parameter) {
  bypassed_ = false;
  if (active_ || !warns_of_bypass_ || ++bypasses_in_a_row_ < 2) return;
  warns_of_bypass_ = false;
  libtorch::warn(
      "backward",
      fmt::format(
          "{}two backwards in a row computed gradients, such as that of parameter {}, which are "
          "not reduced, because they did not start from an output of the wrapped model. Call the "
          "wrapper, not module()->forward (with a Reducer: use what prepare returns). To keep "
          "gradients on this rank only, call the model under no_sync()",
          where(), parameter));
}

void BackwardReduction::warn_of_equal_draws(std::int64_t root_draw) {
  // Only rank 1 warns, to avoid a warning from each rank.
  const bool compares_with_rank_zero = group_->rank() == 1 && root_ == 0;
  if (!compares_with_rank_zero || first_draw_ == 0 || first_draw_ != root_draw) return;
  libtorch::warn("forward",
                 where() +
                     "forward drew the same random numbers as on rank 0, so that both drop "
                     "the same elements. Seed the ranks differently: "
                     "lockstep::seed_everything(seed, group)");
}

}  // namespace lockstep
