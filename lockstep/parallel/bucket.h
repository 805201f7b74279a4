// SPDX-License-Identifier: BSD-3-Clause
// A flat buffer that holds several gradients and is reduced at once.
#pragma once

#include <array>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/bucket_plan.h"

namespace lockstep {

// Gradients are counted from 0 in the order of PlannedBucket::parameters.
class Bucket {
 public:
  // A collective call: the buffer comes from group.empty. All parameters of the plan are given.
  Bucket(int index, const PlannedBucket& plan, std::span<const at::Tensor> parameters,
         ProcessGroup& group);

  // Buckets are reduced in this order on every rank.
  int index() const { return index_; }
  int size() const { return static_cast<int>(parameters_.size()); }
  // The parameters whose gradients it holds, by their number in the reducer.
  const std::vector<int>& parameters() const { return parameters_; }

  // Everything: gradients, padding and trailer. One dimension, of a real type. Whoever reduces a
  // bucket leaves the mean over the ranks here, of every element.
  const at::Tensor& flat() const { return flat_; }

  // A gradient, as a view with the parameter's shape, and its strides if they leave no gaps.
  const at::Tensor& gradient(int i) const { return gradients_[static_cast<std::size_t>(i)]; }

  // Takes in a gradient that is not the view. What no other rank will read stays where it is, and
  // must not change until the bucket has been reduced.
  void take(int i, const at::Tensor& gradient);
  // Brings in what has stayed elsewhere: of one gradient, or all of it.
  void complete(int i);
  void complete();
  // Hands over what has stayed elsewhere, for a reduction that reads it there.
  std::vector<Piece> release_pieces() { return std::exchange(pieces_, {}); }

  // The trailer tells how many ranks used each parameter: a rank contributes 1 or 0 before the
  // reduction, and sees afterwards whether any rank used it. Reading waits for the device.
  void set_all_used();
  void set_unused(int i);
  bool used_by_any_rank(int i) const;

 private:
  ElementRange range_of(int i) const;

  int index_;
  std::vector<int> parameters_;
  at::Tensor flat_;
  ElementRange own_share_;
  std::vector<std::int64_t> offsets_;
  std::vector<Piece> pieces_;  // not in flat_ yet
  std::vector<at::Tensor> gradients_;
  at::Tensor trailer_;
  // Where the trailer is on a CPU, and 1 in its type: a tensor operation for an element costs more
  // than a small bucket's reduction.
  std::byte* trailer_bytes_ = nullptr;
  std::size_t element_size_ = 0;
  std::array<std::byte, 16> one_ = {};
};

}  // namespace lockstep
