// SPDX-License-Identifier: BSD-3-Clause
// The stages of a collective that is made of messages, and the makers of each collective's
// schedule.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/core/collective_args.h"
#include "lockstep/comm/core/task_engine.h"
#include "lockstep/comm/remote/transport.h"

namespace lockstep::remote {

struct Stage {
  std::function<std::unique_ptr<Transmission>(Transport&)> start;
  std::function<void()> finish = {};
  // The stage that must have finished before this one starts; -1 if there is none. Stages always
  // start in order.
  int after = -1;
};

class Schedule final : public Task {
 public:
  Schedule(const Call& call, std::vector<Stage> stages);

  // Makes ranks compare `whole`, which this call is a part of, instead of this call.
  void part_of(const Call& whole) { replace_call(whole); }
  // The sizes that an all_to_all sends and expects, as in exchange_sizes().
  void exchanges(std::vector<std::int64_t> sizes) { sizes_ = std::move(sizes); }
  // Adds a stage before all others.
  void begin_with(Stage stage);
  // The work that the caller's device must have done before any stage starts.
  void mark(std::shared_ptr<void> mark) { mark_ = std::move(mark); }
  // Makes the calling thread's current stream wait for all that is left; false if that is
  // impossible.
  bool order_current_stream();
  // When it was started on the group.
  std::chrono::steady_clock::time_point since() const { return since_; }

  // Finishes the stages whose transmissions have arrived, but none before the first stage, in which
  // ranks may find that their calls differ. True if a stage finished.
  bool finish_arrived();
  // Starts the stages that may start. True if any did. A stage that throws is not started again:
  // part of it may be in transit.
  bool start_next(Transport& transport);
  bool empty() const { return stages_.empty(); }
  bool all_started() const { return started_ == stages_.size(); }

  // Takes all transmissions under way from a group that has failed; they still access the tensors.
  std::vector<std::unique_ptr<Transmission>> take_transmissions();

 private:
  struct Progress {
    Stage stage;
    std::unique_ptr<Transmission> transmission;
    bool finished = false;
  };

  std::vector<std::int64_t> sizes_;
  std::shared_ptr<void> mark_;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
  std::vector<Progress> stages_;
  std::size_t started_ = 0;
  bool refused_ = false;
  std::size_t finished_ = 0;
};

// Calls that start in order, which is the same on all ranks.
class CallLine {
 public:
  std::uint64_t last_number() const { return last_number_; }
  bool empty() const { return calls_.empty(); }
  const Schedule& oldest() const { return *calls_.front(); }
  // The call of this number if it is under way, else null.
  const Call* find(std::uint64_t number) const;
  void push(std::shared_ptr<Schedule> call);
  // True if anything moved.
  bool advance(Transport& transport);
  // Forgets all calls, and returns their transmissions under way.
  std::vector<std::unique_ptr<Transmission>> clear();

 private:
  std::vector<std::shared_ptr<Schedule>> calls_;
  std::uint64_t last_number_ = 0;
};

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
// Ranks also compare the sizes of an all_to_all, as in exchange_sizes().
Stage exchange_comparison(const std::vector<std::int64_t>& sizes, Position position);

}  // namespace lockstep::remote
