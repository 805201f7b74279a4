// SPDX-License-Identifier: BSD-3-Clause
// Parameters as flat memory, of which each rank owns a part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/core/piece.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/backward_reduction.h"
#include "lockstep/parallel/bucket_plan.h"

namespace lockstep::optim {

// Elements of a parameter, counted in the order in which they lie in memory.
struct ParameterPart {
  std::size_t number;  // of the parameter
  at::Tensor parameter;
  ElementRange range;
};

// UsageError, which begins with `owner` and names the parameter, if one requires a gradient that
// the reduction does not reduce.
void require_parameters_of(const BackwardReduction& reduction,
                           const std::vector<at::Tensor>& parameters, std::string_view owner);

// Parameters are counted as in the list that the constructor takes. They lie in buckets like those
// of gradients, and a rank owns the same share of both (share_of_rank).
class FlatParameters {
 public:
  // Collective. Moves the parameters' values into memory from group.empty; the tensors stay the
  // same objects. A parameter with gaps between its elements becomes contiguous. The reduction may
  // be null; otherwise it has a plan. Errors begin with `owner`.
  FlatParameters(std::string_view owner, std::vector<at::Tensor> parameters, ProcessGroup& group,
                 const BackwardReduction* reduction);

  std::size_t parameters() const { return parameters_.size(); }
  std::size_t buckets() const { return buckets_.size(); }
  // What this rank owns of a bucket.
  const std::vector<ParameterPart>& own_parts(std::size_t bucket) const {
    return buckets_[bucket].own_parts;
  }
  // Collective. Afterwards every rank has the elements of the bucket that their owners have
  // changed.
  Work exchange(std::size_t bucket);

  // After the exchanges: autograd knows that the parameters have changed.
  void commit() const;

  // UsageError, which names the parameter by its number, if one has been moved elsewhere.
  void check() const;

  // Collective. A state that each rank has for its own parts becomes, on the rank `to`, one tensor
  // per parameter, in its shape and in the type of its state; on other ranks they are undefined.
  // parts[b][i] belongs to own_parts(b)[i]; an undefined one stands for zeros.
  std::vector<at::Tensor> gather(const std::vector<std::vector<at::Tensor>>& parts, int to);

 private:
  struct Member {
    std::size_t number;
    std::int64_t offset;
  };
  struct FlatBucket {
    at::Tensor memory;
    ElementRange share;  // of this rank
    std::vector<Member> members;
    std::vector<ParameterPart> own_parts;
  };

  void add_bucket(const PlannedBucket& plan);

  std::string_view owner_;
  std::vector<at::Tensor> parameters_;
  ProcessGroup& group_;
  std::vector<FlatBucket> buckets_;
};

}  // namespace lockstep::optim
