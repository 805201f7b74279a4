// SPDX-License-Identifier: BSD-3-Clause
// Finds ranks that reduce gradients of different steps together: their parameters have been updated
// differently often.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/bucket_plan.h"

namespace lockstep {

// Every reduction carries a code of the number of in-place changes, as autograd counts them. Ranks
// compare their parameters only if codes differ, since a rank may also change parameters and change
// them back, to evaluate averaged weights, say.
class UpdateCount {
 public:
  // All changes so far, as autograd counts them, and whether there were others since the last call.
  // Those before the first call are not counted.
  void set(std::int64_t changes, bool any_uncounted) {
    if (any_uncounted) ++uncounted_;
    changes_ = changes + uncounted_;
    if (!agreed_) agreed_ = changes_;
  }
  // From 0 to kUpdateCodes - 1. Different counts have the same code now and then, but not for long.
  int code() const;
  // Collective, called on every rank if ranks have different codes. The message of this rank's
  // error; empty if the parameters are equal, from which on changes are counted anew.
  std::string compare(ProcessGroup& group, const std::vector<at::Tensor>& parameters);

 private:
  std::int64_t count() const { return changes_ - agreed_.value_or(changes_); }

  std::int64_t uncounted_ = 0;
  std::int64_t changes_ = 0;
  std::optional<std::int64_t> agreed_;
  // Counts that differ again and again, between equal parameters, are compared ever more rarely.
  int skipped_ = 0;
  int skips_ = 0;
};

}  // namespace lockstep
