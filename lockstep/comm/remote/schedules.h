// SPDX-License-Identifier: BSD-3-Clause
// The stages of each collective. The kernels compute sums in rank order: each rank gets its share
// of every rank's elements, adds them up, and passes the result to all ranks. This moves 2(N-1)/N
// of the tensor in and out of each of N ranks, as a ring does. Two ranks need only one stage, in
// which each sends all that it has. Tensors are contiguous and in host memory.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/core/collective_args.h"
#include "lockstep/comm/remote/schedule.h"

namespace lockstep::remote {

// Sums of larger tensors go in chunks, so that one is added up while the next is on its way. The
// best size between machines depends on the transport.
inline constexpr std::int64_t kChunkBytesOnOneMachine = 4 << 20;

// Tensors up to this size go to all ranks whole, in one stage.
inline constexpr std::int64_t kSmallBytes = 8 * 1024;

// This rank's number, the number of ranks, and the size of the chunks that they exchange, which is
// the same on all ranks.
struct Position {
  int rank;
  int size;
  std::int64_t chunk_bytes = kChunkBytesOnOneMachine;
};

using SchedulePtr = std::shared_ptr<Schedule>;

// Makes the schedules that carry out a call, in order: one for each tensor of a list. The tensors
// of `args` are contiguous and where the transport can use them. Lists are empty where this rank
// has no tensors.
using Scheduler = std::vector<SchedulePtr> (*)(const CollectiveArgs& args, Position position);
std::vector<SchedulePtr> schedule_bytes(const CollectiveArgs& args, Position position);

SchedulePtr make_schedule(const Call& call, std::vector<Stage> stages);
// For all_reduce and reduce.
SchedulePtr schedule_reduction(const Call& call, const at::Tensor& tensor, Position position);
SchedulePtr schedule_reduce_scatter(const Call& call, const at::Tensor& output,
                                    at::TensorList inputs, Position position);
// A stage that moves no data, for calls without elements and before a library's own algorithms. A
// transport that compares calls does so in it.
Stage agreement(Position position);

// Puts each rank's vote into `votes`, one byte per rank; it must exist until the end. Moves nothing
// else.
SchedulePtr schedule_vote(const Call& call, bool vote, const at::Tensor& votes, Position position);

// A send or recv, preceded by a description from which the receiver checks that it gets the
// expected message; UsageError on the receiver if not.
SchedulePtr schedule_message(const Call& call, const at::Tensor& tensor, Tag tag);

// All ranks compare their calls before they carry them out. UsageError if they differ.
Stage comparison(const Call& call, Position position);
// Ranks also compare the sizes of an all_to_all, as in exchange_sizes.h.
Stage exchange_comparison(const std::vector<std::int64_t>& sizes, Position position);

}  // namespace lockstep::remote
