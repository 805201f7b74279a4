// SPDX-License-Identifier: BSD-3-Clause
// Flat buffers that hold several gradients each and are reduced as a whole, and the state of their
// reductions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/types/work.h"
#include "lockstep/core/trace_span.h"
#include "lockstep/parallel/bucket_plan.h"
#include "lockstep/tensor/named_tensor.h"
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
  // Where a reduction leaves the mean over the ranks: all of flat(), or the share of this rank.
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

// The buckets of a list of parameters, which are counted as in that list. Planned in the first
// backward, and then made one after another.
class GradientBuckets {
 public:
  // Where a gradient is: at `index` in a bucket, which is -1 until the bucket has been made.
  struct Place {
    int bucket = -1;
    int index = 0;
  };

  // The parameters require gradients. `divided`: as in Bucket, for all of them.
  GradientBuckets(const std::vector<NamedTensor>& parameters, bool divided);

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const std::vector<std::string>& names() const { return names_; }
  bool are_divided() const { return divided_; }

  // What each bucket holds; empty until the first backward.
  const std::vector<PlannedBucket>& plan() const { return plan_; }
  void set_plan(std::vector<PlannedBucket> plan);
  // Collective: makes the next bucket of the plan.
  Bucket& add(ProcessGroup& group);
  // Whether all buckets of the plan have been made.
  bool are_complete() const { return !plan_.empty() && buckets_.size() == plan_.size(); }

  std::size_t size() const { return buckets_.size(); }
  Bucket& operator[](std::size_t index) { return buckets_[index]; }
  const Bucket& operator[](std::size_t index) const { return buckets_[index]; }
  std::vector<Bucket>::iterator begin() { return buckets_.begin(); }
  std::vector<Bucket>::iterator end() { return buckets_.end(); }

  Place place(int parameter) const { return places_[static_cast<std::size_t>(parameter)]; }
  // The view of a gradient in its bucket, which has been made.
  const at::Tensor& gradient(int parameter) const {
    const Place at = place(parameter);
    return buckets_[static_cast<std::size_t>(at.bucket)].gradient(at.index);
  }

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<std::string> names_;
  bool divided_;
  std::vector<PlannedBucket> plan_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;  // of each gradient
};

// The reductions of the buckets in one backward: which bucket is complete, launched, or done.
// Buckets are counted from 0 and launched in that order; each arrival appears in the trace.
class BucketLaunches {
 public:
  void reserve(std::size_t buckets) { buckets_.reserve(buckets); }
  // The next bucket of the plan has been made, for `gradients` gradients.
  void add(int gradients) { buckets_.push_back({.gradients = gradients, .missing = gradients}); }

  // One more gradient of the bucket is ready.
  void gradient_is_ready(std::size_t bucket) { --buckets_[bucket].missing; }
  // The bucket to launch next.
  std::size_t next() const { return next_; }
  bool next_is_complete() const { return next_ < buckets_.size() && buckets_[next_].missing == 0; }
  bool is_launched(std::size_t bucket) const { return buckets_[bucket].launched; }
  // Returns the next bucket, whose reduction the caller starts and passes to started(). It is
  // traced if its gradients travel to other ranks.
  std::size_t launch(bool travels);
  void started(std::size_t bucket, Work reduction) {
    buckets_[bucket].reduction = std::move(reduction);
  }

  // Looks, without waiting, whether the oldest reduction under way is done.
  void poll();
  void wait(std::size_t bucket);
  // All are done: prepares for the next backward.
  void restart();
  // Drops the reductions after an error.
  void drop() noexcept;

 private:
  struct State {
    int gradients;
    int missing;  // gradients that are not ready yet
    bool launched = false;
    std::optional<Launch> launch = {};  // only if this process is traced
    Work reduction = {};
  };
  void trace_arrival(std::size_t bucket);

  std::vector<State> buckets_;
  std::size_t next_ = 0;
  std::size_t oldest_ = 0;  // the first bucket that is launched and not known to be done
};

}  // namespace lockstep
