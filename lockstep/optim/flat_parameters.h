// SPDX-License-Identifier: BSD-3-Clause
// Parameters as flat memory, of which each rank owns a part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/parallel/bucket.h"
#include "lockstep/parallel/bucket_plan.h"
#include "lockstep/tensor/piece.h"

namespace lockstep::optim {

// Elements of a parameter, counted in the order in which they lie in memory.
struct ParameterPart {
  std::size_t number;  // of the parameter
  at::Tensor parameter;
  ElementRange range;
  // Where the same elements lie on the other ranks, and their gradients on every rank, if this
  // process can reach them there.
  std::vector<std::byte*> copies = {};
  std::vector<std::byte*> gradients = {};
};

// UsageError of the component `owner`, which names the parameter, if one requires a gradient that
// is in none of the buckets.
void require_parameters_of(const GradientBuckets& gradients,
                           const std::vector<at::Tensor>& parameters, std::string_view owner);

// Parameters are counted as in the list that the constructor takes. They lie in buckets like those
// of gradients, and a rank owns the same share of both (share_of_rank). Parameters of which the
// ranks of the host have one copy (one_copy.h) stay where they are, and a rank owns the same parts
// of them. On several hosts it sends their new values to one rank of each other host, which stores
// them there.
class FlatParameters {
 public:
  // Collective. Moves the parameters' values into memory from group.empty, unless they have one
  // copy on this host; the tensors stay the same objects. A parameter with gaps between its
  // elements becomes contiguous. The buckets of gradients may be null; otherwise all have been
  // made. `host`: the ranks that have one copy; null if there is none. `owner` is the component of
  // errors.
  FlatParameters(std::string_view owner, std::vector<at::Tensor> parameters, ProcessGroup& group,
                 std::shared_ptr<ProcessGroup> host, const GradientBuckets* gradients);

  std::size_t parameters() const { return parameters_.size(); }
  const at::Tensor& parameter(std::size_t number) const { return parameters_[number]; }
  std::size_t buckets() const { return buckets_.size(); }
  // What this rank owns of a bucket.
  const std::vector<ParameterPart>& own_parts(std::size_t bucket) const {
    return parts(bucket, group_.rank());
  }
  // What a rank owns of a bucket. Known of other ranks only if the parameters have one copy.
  const std::vector<ParameterPart>& parts(std::size_t bucket, int rank) const {
    return buckets_[bucket].parts[static_cast<std::size_t>(rank)];
  }

  // Whether the parameters have one copy on this host.
  bool have_one_copy() const { return have_one_copy_; }

  // Whether every gradient in the buckets is one of a parameter here, and can be reached on every
  // rank.
  bool reaches_gradients() const { return reaches_gradients_; }

  // An update, which is collective: begin_update(), new values for this rank's own parts and their
  // copies, exchange() of each bucket in order, and end_update(). Then every rank has all new
  // values, and autograd knows that they have changed.
  //
  // Where ranks map each other's memory, each reads all gradients and stores its values into all
  // parameters, or into the only copy, from the moment when all have begun until all have ended.
  //
  // `averages`: whether the update averages gradients, for bytes_sent(). UsageError on every rank,
  // and nothing has been stored, if ranks have begun different updates.
  void begin_update(bool averages);
  // How many updates have begun on this rank.
  std::int64_t updates() const { return updates_; }
  void exchange(std::size_t bucket);
  void end_update();
  // After an update that failed: moves the parameters into memory in which no rank that does not
  // know of the failure yet can store anything.
  void leave_shared_memory();

  // UsageError, which names the parameter, if one has been moved elsewhere. Also if one that has
  // one copy on this host has changed in another way than by an update. The name is the model's if
  // there are buckets of gradients, otherwise the parameter's number.
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
    at::Tensor memory;  // undefined if the parameters have one copy on this host
    at::TensorOptions options;
    std::int64_t elements = 0;
    ElementRange share;      // of this rank
    bool is_mapped = false;  // by every rank
    std::vector<Member> members;
    std::vector<std::vector<ParameterPart>> parts;  // by rank
    at::Tensor gradients;                           // keeps the mappings that `parts` point to
  };

  ErrorContext context() const;
  void add_bucket(const PlannedBucket& plan, const Bucket* gradients);
  void move_members(const FlatBucket& bucket);
  void find_ranks_of_other_hosts();
  // Of one bucket, by rank.
  void exchange_between_hosts(const std::vector<std::vector<ParameterPart>>& parts);
  void add_parts(FlatBucket& bucket, const PlannedBucket& plan, const Bucket* gradients);

  std::string_view owner_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::string> names_;
  ProcessGroup& group_;
  std::shared_ptr<ProcessGroup> host_;  // null unless the parameters have one copy
  // Of other hosts: the ranks that store there what this rank updates, and the ranks whose values
  // this rank stores here.
  std::vector<int> receivers_;
  std::vector<int> senders_;
  std::vector<FlatBucket> buckets_;
  bool any_is_mapped_ = false;
  bool have_one_copy_ = false;
  bool reaches_gradients_;
  bool averages_ = false;
  std::vector<Work> exchanges_;
  // What ranks compare before they store anything: no other update of the group has the same.
  std::int64_t number_ = 0;
  std::int64_t updates_ = 0;
};

}  // namespace lockstep::optim
