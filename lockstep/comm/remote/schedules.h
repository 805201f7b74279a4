// SPDX-License-Identifier: BSD-3-Clause
// The stages of each collective. Sums are taken in the order of the ranks with the kernels of all
// backends: each rank gets its share of every rank's elements, adds them up, and passes the result
// to everybody. That moves 2 (N - 1) / N of the tensor in and out of each of N ranks, as a ring
// does. Two ranks do with one stage, in which each sends all that it has. Tensors are contiguous
// and in host memory.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/remote/schedule.h"

namespace lockstep::remote {

// Sums of larger tensors go in chunks, so that one is added up while the next is on its way. On one
// machine few large ones are faster; between machines it depends on the transport.
inline constexpr std::int64_t kChunkBytesOnOneMachine = 4 << 20;

// Tensors up to this size go to everybody as a whole, in one stage.
inline constexpr std::int64_t kSmallBytes = 8 * 1024;

// The place of a rank among the ranks, and in what chunks they exchange; the same for all.
struct Position {
  int rank;
  int size;
  std::int64_t chunk_bytes = kChunkBytesOnOneMachine;
};

using SchedulePtr = std::shared_ptr<Schedule>;

SchedulePtr schedule_all_reduce(const at::Tensor& tensor, AllReduceOptions options,
                                Position position);
SchedulePtr schedule_reduce(const at::Tensor& tensor, int root, AllReduceOptions options,
                            Position position);
SchedulePtr schedule_reduce_scatter(const at::Tensor& output, std::vector<at::Tensor> inputs,
                                    AllReduceOptions options, Position position);
SchedulePtr schedule_broadcast(const at::Tensor& tensor, int root, Position position);
SchedulePtr schedule_all_gather(std::vector<at::Tensor> outputs, const at::Tensor& input,
                                Position position);
// Lists are empty on other ranks than root.
SchedulePtr schedule_gather(std::vector<at::Tensor> outputs, const at::Tensor& input, int root,
                            Position position);
SchedulePtr schedule_scatter(const at::Tensor& output, std::vector<at::Tensor> inputs, int root,
                             Position position);
SchedulePtr schedule_all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs);

// How a group schedules its calls, and on which device their tensors are: as above unless the
// library does sums itself.
struct Schedules {
  at::Device device = at::kCPU;
  decltype(&schedule_all_reduce) all_reduce = schedule_all_reduce;
  decltype(&schedule_reduce) reduce = schedule_reduce;
  decltype(&schedule_reduce_scatter) reduce_scatter = schedule_reduce_scatter;
  decltype(&schedule_broadcast) broadcast = schedule_broadcast;
  decltype(&schedule_all_gather) all_gather = schedule_all_gather;
  decltype(&schedule_gather) gather = schedule_gather;
  decltype(&schedule_scatter) scatter = schedule_scatter;
  decltype(&schedule_all_to_all) all_to_all = schedule_all_to_all;
};

// What a call says of itself, and what is planned of it.
Call reducing_call(Collective collective, const at::Tensor& tensor, AllReduceOptions options);
Call plain_call(Collective collective, const at::Tensor& tensor, int root = -1);
SchedulePtr make_schedule(const Call& call, std::vector<Stage> stages);
// A stage that moves nothing, for calls without elements and before the library's own algorithms: a
// transport that compares calls does so in it.
Stage meeting(Position position);

// Each rank's vote goes into the list, one byte a rank, which must be there until the end. Moves
// nothing else.
SchedulePtr schedule_vote(const Call& call, bool vote, const at::Tensor& votes, Position position);

// A message, behind a description of it, so that the receiver can tell whether it is the one that
// it expects: UsageError there if not.
SchedulePtr schedule_send(const at::Tensor& tensor, int to, Tag tag);
SchedulePtr schedule_receive(const at::Tensor& tensor, int from, Tag tag);

// All ranks compare what they call before they do it. UsageError if that differs.
Stage comparison(const Call& call, Position position);
// And what they give each other in an all_to_all, by exchange_sizes.h.
Stage exchange_comparison(const std::vector<std::int64_t>& sizes, Position position);

}  // namespace lockstep::remote
