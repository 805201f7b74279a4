// SPDX-License-Identifier: BSD-3-Clause
// Runs the steps of a ring all-reduce, one tensor after the other.
#include "lockstep/comm/ring_all_reduce.h"

#include <array>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include "lockstep/core/error.h"
#include "lockstep/core/process/spinning.h"
#include "lockstep/tensor/device_copies.h"
#include "lockstep/tensor/kernels/reduce.h"

namespace lockstep {

RingAllReduce::RingAllReduce(std::vector<at::Tensor> tensors, const Call& call,
                             RingNeighbours neighbours, Work agreement,
                             std::shared_ptr<RingAllReduce> before)
    : neighbours_(std::move(neighbours)),
      call_(call),
      agreement_(std::move(agreement)),
      before_(std::move(before)) {
  const at::NoGradGuard no_grad;
  for (auto& tensor : tensors) {
    at::Tensor flat = on_host(tensor).detach().view(-1);
    targets_.push_back({std::move(tensor), std::move(flat)});
  }
}

RingAllReduce::~RingAllReduce() = default;

bool RingAllReduce::poll() {
  try_advance();
  const State state = state_.load(std::memory_order_acquire);
  if (state == State::failed) std::rethrow_exception(error_);
  return state == State::done;
}

bool RingAllReduce::try_advance() {
  const SpinGuard guard(busy_, std::try_to_lock);
  if (!guard.holds()) return false;
  bool moved = false;
  if (state_ == State::under_way) {
    try {
      if (before_) {
        before_->try_advance();
        // If the ring before failed, this one fails as well: they share the group.
        if (before_->state_.load(std::memory_order_acquire) != State::under_way) before_.reset();
      }
      if (!before_) moved = advance();
    } catch (...) {
      fail();
    }
  }
  return moved;
}

bool RingAllReduce::advance() {
  if (!agreed_ && !agreement_.poll()) return false;
  agreed_ = true;
  bool moved = false;
  while (!all_tensors_done()) {
    if (!step_started_) start_step();
    if (!sending_.poll() || !receiving_.poll()) return moved;
    end_step();
    moved = true;
  }
  state_.store(State::done, std::memory_order_release);
  return true;
}

void RingAllReduce::wait(const Deadline& deadline) {
  std::shared_ptr<RingAllReduce> before;
  {
    const SpinGuard guard(busy_);
    before = before_;
  }
  if (before) before->wait(deadline);
  const SpinGuard guard(busy_);
  before_.reset();
  if (state_ == State::failed) std::rethrow_exception(error_);
  try {
    agreement_.wait(deadline);
    agreed_ = true;
    while (!all_tensors_done()) {
      if (!step_started_) start_step();
      sending_.wait(deadline);
      receiving_.wait(deadline);
      end_step();
    }
    state_.store(State::done, std::memory_order_release);
  } catch (...) {
    fail();
    std::rethrow_exception(error_);
  }
}

// After the agreement, only a message to or from a neighbour can fail. The caller does not know
// about these messages, so the error names the ring.
void RingAllReduce::fail() {
  try {
    if (!agreed_) throw;
    rethrow_within(
        {.operation = "all_reduce by a ring", .rank = neighbours_.rank, .size = neighbours_.size});
  } catch (...) {
    error_ = std::current_exception();
  }
  state_.store(State::failed, std::memory_order_release);
}

// Steps 0 to N - 2 combine chunks; steps N - 1 to 2N - 3 pass the finished chunks on.
void RingAllReduce::start_step() {
  const int size = neighbours_.size;
  const int hop = step_ % (size - 1);
  const int first = step_ < size - 1 ? neighbours_.rank : neighbours_.rank + 1;
  const at::Tensor incoming = chunk(first - hop - 1);
  received_ = step_ < size - 1 ? at::empty_like(incoming) : incoming;
  receiving_ = neighbours_.receive(received_);
  sending_ = neighbours_.send(chunk(first - hop));
  step_started_ = true;
}

void RingAllReduce::end_step() {
  const int size = neighbours_.size;
  if (step_ < size - 1) combine(received_, chunk(neighbours_.rank - step_ - 1));
  step_started_ = false;
  received_.reset();
  if (++step_ < 2 * (size - 1)) return;
  step_ = 0;
  const at::NoGradGuard no_grad;
  const Target& target = targets_[tensor_];
  if (!target.flat.is_alias_of(target.original)) {
    target.original.copy_(target.flat.view_as(target.original));
  }
  ++tensor_;
}

// Chunk numbers wrap around the ring.
at::Tensor RingAllReduce::chunk(int number) const {
  const int size = neighbours_.size;
  const int index = (number % size + size) % size;
  const at::Tensor& flat = targets_[tensor_].flat;
  const std::int64_t begin = flat.numel() * index / size;
  const std::int64_t end = flat.numel() * (index + 1) / size;
  return flat.narrow(0, begin, end - begin);
}

void RingAllReduce::combine(const at::Tensor& received, const at::Tensor& own) const {
  const bool last = step_ == neighbours_.size - 2;
  const double scale = scale_over(neighbours_.size, call_.op, call_.scale);
  const std::array<const void*, 2> sources{received.data_ptr(), own.data_ptr()};
  const std::array<void*, 1> destination{own.data_ptr()};
  // A mean stays a sum until the last step, which scales it.
  const ReduceOp op = call_.op == ReduceOp::mean ? ReduceOp::sum : call_.op;
  reduce(sources, destination, own.numel(), own.scalar_type(), op, last ? scale : 1);
}

}  // namespace lockstep
