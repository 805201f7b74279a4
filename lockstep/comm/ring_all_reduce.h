// SPDX-License-Identifier: BSD-3-Clause
// The ring all-reduce over send and recv. In N - 1 steps each rank passes a chunk on and combines
// the chunk that it receives with its own; in N - 1 more steps the finished chunks go around.
// Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/core/call.h"
#include "lockstep/comm/core/task_engine.h"
#include "lockstep/comm/types/work.h"

namespace lockstep {

// The two ranks that this rank exchanges messages with.
struct RingNeighbours {
  std::function<Work(const at::Tensor&)> send;     // to the next rank
  std::function<Work(const at::Tensor&)> receive;  // from the previous one
  int rank;
  int size;
  std::chrono::milliseconds timeout;
};

class RingAllReduce final : public Operation, public Progressing {
 public:
  // `agreement` completes when every rank has made this call. `before` is the group's previous ring
  // if it may still be under way; it goes first.
  RingAllReduce(std::vector<at::Tensor> tensors, const Call& call, RingNeighbours neighbours,
                Work agreement, std::shared_ptr<RingAllReduce> before);
  ~RingAllReduce() override;

  bool poll() override;
  void wait(const Deadline& deadline) override;
  Deadline default_deadline() const override { return Deadline::after(neighbours_.timeout); }

  bool try_advance() override;
  Doorbell* doorbell_if_busy() override { return nullptr; }

 private:
  enum class State : std::uint8_t { under_way, done, failed };
  struct Target {
    at::Tensor original;
    at::Tensor flat;  // contiguous and in host memory
  };

  // These require busy_.
  bool advance();
  void start_step();
  void end_step();
  void fail();
  bool all_tensors_done() const { return tensor_ == targets_.size(); }
  at::Tensor chunk(int number) const;
  void combine(const at::Tensor& received, const at::Tensor& own) const;

  RingNeighbours neighbours_;
  Call call_;
  Work agreement_;
  std::shared_ptr<RingAllReduce> before_;
  std::vector<Target> targets_;
  bool agreed_ = false;
  std::size_t tensor_ = 0;
  int step_ = 0;
  bool step_started_ = false;
  at::Tensor received_;
  Work sending_;
  Work receiving_;
  std::exception_ptr error_;  // written before state_
  std::atomic<State> state_ = State::under_way;
  // A spin lock. A waiting thread may re-enter through the progress of others, and must then skip.
  std::atomic_flag busy_;
};

}  // namespace lockstep
