// SPDX-License-Identifier: BSD-3-Clause
// The reduction as optimizers and clipping see it: the buckets of gradients, and with
// whole_gradients = false the share of the means that each rank gets. Such a backward leaves each
// rank only its share (share_of_rank) of the means of each bucket, either at its end or, if an
// optimizer defers them, in the only pass of that optimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/types/work.h"
#include "lockstep/parallel/bucket.h"
#include "lockstep/parallel/bucket_plan.h"

namespace lockstep {

class BypassingGradients;
struct ErrorContext;
class ReducerGroup;

// What ranks tell each other after a backward whose means are divided, where none sees all of them:
// 0 or 1, for each parameter and for each code of UpdateCount.
struct Findings {
  explicit Findings(std::size_t parameters)
      : used(parameters), not_finite(parameters), update_codes(kUpdateCodes) {}

  std::vector<std::uint8_t> used;
  std::vector<std::uint8_t> not_finite;
  std::vector<std::uint8_t> update_codes;
};

// Belongs to a BackwardReduction, which owns what the constructor takes. Parameters are counted as
// in the buckets.
class DividedReduction {
 public:
  DividedReduction(GradientBuckets& buckets, ReducerGroup& group,
                   const BypassingGradients& bypassing);

  // For optimizers and clipping.

  const GradientBuckets& buckets() const { return buckets_; }
  // Whether a backward leaves each rank only its share of the means.
  bool divides() const { return buckets_.are_divided(); }
  // There is an optimizer that updates the shares of this rank only. Without one, the second
  // backward that divides is refused.
  void expect_shares() { expected_ = true; }
  bool shares_expected() const { return expected_; }
  // From now on, a backward that divides leaves the shares to be reduced by the optimizer, unless
  // their means are needed before.
  void defer_shares() { defers_ = divides(); }
  // Collective if shares are still to be reduced; then each rank gets its own.
  void reduce_shares();
  // Makes this rank's gradients views of the buckets, with their values.
  void return_to_buckets();
  // The same, and leaves the pending reduction to the caller. False, and nothing has changed, if
  // none was pending.
  bool take_over_shares();
  // Views of the elements of gradients that lie in the shares of this rank. The views of all ranks
  // together are all gradients, each element once. A gradient that was replaced becomes a view of
  // its bucket. Collective if shares are still to be reduced.
  std::vector<at::Tensor> own_gradients();
  // UsageError in the caller's context if a gradient to step with has parts that were not reduced.
  void require_reduced(const ErrorContext& caller) const;

  // For BackwardReduction.

  // UsageError if backwards divide and no optimizer expects shares.
  void require_owner_of_shares() const;
  // A backward begins, whose shares may be deferred.
  void begin(bool may_defer) { due_ = defers_ && may_defer; }
  // Whether the shares of this backward are left to the optimizer.
  bool shares_are_due() const { return due_; }
  // Starts the reduction of a bucket to shares, unless they are left to the optimizer.
  Work reduce(Bucket& bucket);
  // Collective, after the buckets have been reduced. Afterwards a finding is 1 if it was 1 on any
  // rank.
  void share(Findings& findings);
  // The gradient of the parameter is in its bucket, and has been reduced.
  void settle(int parameter);
  // The gradient of the parameter is about to be reduced with others.
  void forget(int parameter) { versions_[static_cast<std::size_t>(parameter)] = -1; }
  // Whether the gradient of the parameter is only a share of a mean, to which nothing can be added.
  bool is_share(int parameter) const {
    return versions_[static_cast<std::size_t>(parameter)] >= 0 && is_unchanged_share(parameter);
  }
  // UsageError: a gradient would be added to such a share. If a reduction runs, it ends the group.
  [[noreturn]] void refuse_addition(const std::string& parameter, bool reduction_runs);

 private:
  bool is_unchanged_share(int parameter) const;
  Work reduce_share(Bucket& bucket);
  void reduce_buckets();
  at::Tensor copy_into_bucket(Bucket& bucket, int index);

  GradientBuckets& buckets_;
  ReducerGroup& group_;
  const BypassingGradients& bypassing_;
  bool expected_ = false;
  bool defers_ = false;
  bool due_ = false;
  // For each parameter the version of its gradient when it became a share; -1 if it is none.
  // Whatever has written to it since, such as zero_grad(), has changed the version.
  std::vector<std::int64_t> versions_;
};

// Cause and remedy of the error if `what`, such as "step()", is to use gradients that did not come
// from the wrapped model.
inline constexpr const char* kNotReduced =
    "parameters have gradients, but no backward of the wrapped model has reduced them";
std::string remedy_of_not_reduced(std::string_view what);

}  // namespace lockstep
