// SPDX-License-Identifier: BSD-3-Clause
// Advances calls phase by phase, and keeps their order in each group.
#include "lockstep/comm/hierarchical/phases.h"

#include <algorithm>

#include "lockstep/core/process/spinning.h"

namespace lockstep::hierarchical {

void PhasedCalls::start(const std::shared_ptr<PhasedCall>& call) {
  const SpinGuard guard(busy_);
  if (error_) return;
  calls_.push_back(call);
  advance();
}

bool PhasedCalls::try_advance() {
  const SpinGuard guard(busy_, std::try_to_lock);
  return guard.holds() && advance();
}

bool PhasedCalls::advance() {
  bool moved = false;
  // How many phases the previous call has started.
  auto limit = static_cast<std::size_t>(-1);
  try {
    for (const auto& call : calls_) {
      moved |= advance(*call, limit);
      limit = call->started_;
    }
  } catch (...) {
    keep(std::current_exception());
    return true;
  }
  std::erase_if(calls_, [](const auto& call) { return call->done(); });
  return moved;
}

bool PhasedCalls::advance(PhasedCall& call, std::size_t limit) {
  bool moved = false;
  while (!call.done()) {
    if (!std::ranges::all_of(call.works_, [](Work& work) { return work.poll(); })) break;
    if (call.started_ == call.phases_.size()) {
      call.works_.clear();
      call.done_.store(true, std::memory_order_release);
    } else if (call.started_ < limit) {
      call.works_ = call.phases_[call.started_]();
      call.phases_[call.started_++] = {};
    } else {
      break;
    }
    moved = true;
  }
  return moved;
}

void PhasedCalls::give_up(const Deadline& deadline) {
  const SpinGuard guard(busy_);
  if (error_ || calls_.empty()) return;
  try {
    for (Work& work : calls_.front()->works_) work.wait(deadline);
  } catch (...) {
    keep(std::current_exception());
  }
}

std::exception_ptr PhasedCalls::error() const {
  const SpinGuard guard(busy_);
  return error_;
}

void PhasedCalls::keep(std::exception_ptr error) noexcept {
  error_ = std::move(error);
  // Comes before works are destroyed: destroying a Work waits for it unless its group has ended.
  try {
    on_error_(error_);
  } catch (...) {
    // The first error counts.
  }
  calls_.clear();
}

}  // namespace lockstep::hierarchical
