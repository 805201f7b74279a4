// SPDX-License-Identifier: BSD-3-Clause
// A flat buffer that holds several gradients and is reduced as a whole.
#pragma once

#include <array>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/bucket_plan.h"
#include "lockstep/tensor/piece.h"

namespace lockstep {

// Gradients are counted from 0, in the order of PlannedBucket::parameters.
class Bucket {
 public:
  // Collective: the buffer comes from group.empty. `parameters` are all parameters of the plan. If
  // the sums are divided, a reduction leaves each rank only its share of them.
  Bucket(int index, const PlannedBucket& plan, std::span<const at::Tensor> parameters,
         ProcessGroup& group, bool divided = false);

  // Every rank reduces buckets in this order.
  int index() const { return index_; }
  int size() const { return static_cast<int>(parameters_.size()); }
  // The parameters whose gradients it holds, by their number in the reducer.
  const std::vector<int>& parameters() const { return parameters_; }

  // The whole buffer: gradients, padding and trailer. One dimension, real type.
  const at::Tensor& flat() const { return flat_; }
  // Where a reduction leaves the mean over the ranks: all of flat(), or this rank's share of it.
  const at::Tensor& means() const { return means_; }
  bool is_divided() const { return divided_; }
  // The elements of a gradient that lie in this rank's share, divided or not, in one dimension. May
  // be empty.
  at::Tensor own_part(int i) const;

  // The gradients as views of flat(), with their parameters' shapes, and their strides if those
  // leave no gaps.
  const std::vector<at::Tensor>& gradients() const { return gradients_; }
  // The same memory as the tensor that becomes .grad. It has a storage of its own, which shows
  // whether the program has kept it, or a view of it.
  const at::Tensor& gradient(int i) const { return exposed_[static_cast<std::size_t>(i)]; }

  // Takes in a gradient that is not gradient(i). A part that no other rank reads stays where it is,
  // and must not change until the bucket has been reduced. What the program has kept of gradient(i)
  // gets memory of its own first, with its values, and gradient(i) becomes another tensor.
  void take(int i, const at::Tensor& gradient);
  // The same for a gradient of zeros.
  void take_zeros(int i);
  // Copies in the parts that stayed elsewhere: of one gradient, or all.
  void complete(int i);
  void complete();
  // Hands over the parts that stayed elsewhere, for a reduction that reads them there.
  std::vector<Piece> release_pieces() { return std::exchange(pieces_, {}); }

  // The trailer shows whether any rank used a parameter: each rank contributes 1 or 0 before the
  // reduction. Reading it waits for the device.
  const at::Tensor& trailer() const { return trailer_; }
  void set_all_used();
  void set_unused(int i);
  bool used_by_any_rank(int i) const;
  // UpdateCount's code of this rank, and after the reduction whether all ranks have the same. Not
  // compared on devices other than a CPU, where reading it would wait.
  void set_update_code(int code);
  bool has_one_update_code() const;

 private:
  ElementRange range_of(int i) const;
  at::Tensor expose(const at::Tensor& view) const;
  void leave_to_holders(int i);
  bool is_nonzero(std::size_t trailer_element) const;

  int index_;
  std::vector<int> parameters_;
  at::Tensor flat_;
  at::Tensor means_;
  bool divided_;
  ElementRange share_;     // of this rank, in elements of flat_
  ElementRange in_place_;  // what no other rank reads in an all_reduce
  std::vector<std::int64_t> offsets_;
  std::vector<Piece> pieces_;  // not in flat_ yet
  std::vector<at::Tensor> gradients_;
  std::vector<at::Tensor> exposed_;
  at::Tensor trailer_;
  // The trailer's address if it is on a CPU, and 1 in its type: a tensor operation per element
  // would cost more than a small bucket's reduction.
  std::byte* trailer_bytes_ = nullptr;
  std::size_t element_size_ = 0;
  std::array<std::byte, 16> one_ = {};
};

}  // namespace lockstep
