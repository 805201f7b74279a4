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

#include "lockstep/comm/core/collective_args.h"
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

// The schedules that carry out a call, in order: one for each tensor of a list. The tensors of
// `args` are contiguous and where the transport can use them. Empty lists where this rank has none.
using Scheduler = std::vector<SchedulePtr> (*)(const CollectiveArgs& args, Position position);
std::vector<SchedulePtr> schedule_bytes(const CollectiveArgs& args, Position position);

SchedulePtr make_schedule(const Call& call, std::vector<Stage> stages);
// Of an all_reduce or reduce.
SchedulePtr schedule_reduction(const Call& call, const at::Tensor& tensor, Position position);
SchedulePtr schedule_reduce_scatter(const Call& call, const at::Tensor& output, at::TensorList inputs,
                                    Position position);
// A stage that moves nothing, for calls without elements and before the library's own algorithms: a
// transport that compares calls does so in it.
Stage agreement(Position position);

// Each rank's vote goes into the list, one byte a rank, which must be there until the end. Moves
// nothing else.
SchedulePtr schedule_vote(const Call& call, bool vote, const at::Tensor& votes, Position position);

// A send or recv, behind a description of it, so that the receiver can tell whether it is the one
// that it expects: UsageError there if not.
SchedulePtr schedule_message(const Call& call, const at::Tensor& tensor, Tag tag);

// All ranks compare what they call before they do it. UsageError if that differs.
Stage comparison(const Call& call, Position position);
// And what they give each other in an all_to_all, by exchange_sizes.h.
Stage exchange_comparison(const std::vector<std::int64_t>& sizes, Position position);

}  // namespace lockstep::remote
