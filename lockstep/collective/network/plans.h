// SPDX-License-Identifier: BSD-3-Clause
// The steps of each collective. Sums are taken in the order of the ranks with the kernels of all
// backends: each rank gets its share of every rank's elements, adds them up, and passes the result
// to everybody. That moves 2 (N - 1) / N of the tensor in and out of each of N ranks, as a ring
// does. Two ranks do with one step, in which each sends all that it has. Tensors are contiguous and
// in host memory.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/collective/network/planned_call.h"
#include "lockstep/collective/process_group.h"

namespace lockstep::network {

// Sums of larger tensors go in chunks, so that one is added up while the next is on its way. On one
// machine few large ones are faster; between machines it depends on the carrier.
inline constexpr std::int64_t kChunkBytesOnOneMachine = 4 << 20;

// Tensors up to this size go to everybody as a whole, in one step.
inline constexpr std::int64_t kSmallBytes = 8 * 1024;

// The place of a rank among the ranks, and in what chunks they exchange; the same for all.
struct Place {
  int rank;
  int size;
  std::int64_t chunk_bytes = kChunkBytesOnOneMachine;
};

using Plan = std::shared_ptr<PlannedCall>;

Plan plan_all_reduce(const at::Tensor& tensor, AllReduceOptions options, Place place);
Plan plan_reduce(const at::Tensor& tensor, int root, AllReduceOptions options, Place place);
Plan plan_reduce_scatter(const at::Tensor& output, std::vector<at::Tensor> inputs,
                         AllReduceOptions options, Place place);
Plan plan_broadcast(const at::Tensor& tensor, int root, Place place);
Plan plan_all_gather(std::vector<at::Tensor> outputs, const at::Tensor& input, Place place);
// Lists are empty on other ranks than root.
Plan plan_gather(std::vector<at::Tensor> outputs, const at::Tensor& input, int root, Place place);
Plan plan_scatter(const at::Tensor& output, std::vector<at::Tensor> inputs, int root, Place place);
Plan plan_all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs);

// How a group plans its calls, and on which device their tensors are: as above unless the library
// does sums itself.
struct Plans {
  at::Device device = at::kCPU;
  decltype(&plan_all_reduce) all_reduce = plan_all_reduce;
  decltype(&plan_reduce) reduce = plan_reduce;
  decltype(&plan_reduce_scatter) reduce_scatter = plan_reduce_scatter;
  decltype(&plan_broadcast) broadcast = plan_broadcast;
  decltype(&plan_all_gather) all_gather = plan_all_gather;
  decltype(&plan_gather) gather = plan_gather;
  decltype(&plan_scatter) scatter = plan_scatter;
  decltype(&plan_all_to_all) all_to_all = plan_all_to_all;
};

// What a call says of itself, and what is planned of it.
Call reducing_call(Collective collective, const at::Tensor& tensor, AllReduceOptions options);
Call plain_call(Collective collective, const at::Tensor& tensor, int root = -1);
Plan make_plan(const Call& call, std::vector<Step> steps);
// A step that moves nothing, for calls without elements and before the library's own algorithms: a
// carrier that compares calls does so in it.
Step meeting(Place place);

// Each rank's vote goes into the list, one byte a rank, which must be there until the end. Moves
// nothing else.
Plan plan_vote(const Call& call, bool vote, const at::Tensor& votes, Place place);

// A message, behind a description of it, so that the receiver can tell whether it is the one that
// it expects: UsageError there if not.
Plan plan_send(const at::Tensor& tensor, int to, Lane lane);
Plan plan_receive(const at::Tensor& tensor, int from, Lane lane);

// All ranks compare what they call before they do it. UsageError if that differs.
Step comparison(const Call& call, Place place);
// And what they give each other in an all_to_all, by exchange_sizes.h.
Step exchange_comparison(const std::vector<std::int64_t>& sizes, Place place);

}  // namespace lockstep::network
