// SPDX-License-Identifier: BSD-3-Clause
// Advances calls phase by phase, keeps their order in each group, and translates the errors of
// inner groups.
#include "lockstep/comm/hierarchical/phases.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "lockstep/core/process/spinning.h"

namespace lockstep::hierarchical {

namespace {

// Translates CallsDiffer from an inner group into ranks and numbers of the hierarchical group.
class PartOfCall final : public Operation {
 public:
  // If another rank has ended the group, starting the work throws.
  PartOfCall(const std::function<Work()>& start, std::chrono::milliseconds timeout,
             std::vector<int> ranks, const Call& whole)
      : timeout_(timeout), ranks_(std::move(ranks)), whole_(whole), work_(translated(start)) {}

  bool poll() override {
    return translated([this] { return work_.poll(); });
  }
  void wait(const Deadline& deadline) override {
    translated([&] { work_.wait(deadline); });
  }
  Deadline default_deadline() const override { return Deadline::after(timeout_); }

 private:
  template <class Function>
  std::invoke_result_t<Function> translated(const Function& function) const try {
    return function();
  } catch (const CallsDiffer& error) {
    Call theirs = error.peers_call();
    theirs.number = whole_.number;
    const int peer = ranks_[static_cast<std::size_t>(error.peer())];
    throw CallsDiffer({}, whole_, peer, fmt::format("rank {}", peer), theirs);
  }

  const std::chrono::milliseconds timeout_;
  const std::vector<int> ranks_;
  const Call whole_;
  Work work_;
};

}  // namespace

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
  // The number of phases that the previous call has started.
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

Work part_of_call(const std::function<Work()>& start, std::chrono::milliseconds timeout,
                  std::vector<int> ranks, const Call& whole) {
  return Work(std::make_shared<PartOfCall>(start, timeout, std::move(ranks), whole));
}

std::vector<Work> within_host_part(const HierarchyLevels& levels, const Call& whole,
                                   const std::function<Work()>& start) {
  return works_of(part_of_call(start, levels.timeout, levels.ranks_of_host(), whole));
}

std::vector<Work> between_hosts_part(const HierarchyLevels& levels, const Call& whole,
                                     const std::function<Work()>& start) {
  return works_of(part_of_call(start, levels.timeout, levels.ranks_between_hosts(), whole));
}

std::vector<Work> works_of(Work work) {
  std::vector<Work> works;
  works.push_back(std::move(work));
  return works;
}

}  // namespace lockstep::hierarchical
