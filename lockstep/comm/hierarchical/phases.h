// SPDX-License-Identifier: BSD-3-Clause
// Calls made of phases, each on its own group: within the host, between the hosts, and within the
// host again. A phase of one call starts behind the same phase of the previous call. So each group
// sees all calls in one order, while different phases overlap. And the works of one phase.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/comm/core/call.h"
#include "lockstep/comm/core/task_engine.h"
#include "lockstep/comm/hierarchical/hierarchy_levels.h"
#include "lockstep/comm/types/work.h"
#include "lockstep/core/deadline.h"

namespace lockstep::hierarchical {

// Larger tensors go in pieces, so that the phases of one piece overlap with the phases of the next.
inline constexpr std::int64_t kPieceBytes = 8 * 1024 * 1024;

class PhasedCall {
 public:
  using Phase = std::function<std::vector<Work>()>;
  explicit PhasedCall(std::vector<Phase> phases) : phases_(std::move(phases)) {}

  bool done() const { return done_.load(std::memory_order_acquire); }

 private:
  friend class PhasedCalls;
  std::vector<Phase> phases_;
  std::size_t started_ = 0;
  std::vector<Work> works_;
  std::atomic<bool> done_ = false;
};

// Thread-safe. An error in a phase ends all calls, and is kept for the callers that wait.
class PhasedCalls final : public Progressing {
 public:
  // `on_error` is called with the first error, on the thread that finds it. Its own errors are
  // dropped.
  explicit PhasedCalls(std::function<void(const std::exception_ptr&)> on_error)
      : on_error_(std::move(on_error)) {}

  void start(const std::shared_ptr<PhasedCall>& call);
  // Call it when `deadline` has passed: waits with it for the oldest call's current works, so that
  // the error names the missing ranks.
  void give_up(const Deadline& deadline);
  // The first error; null if there is none.
  std::exception_ptr error() const;

  // True if anything moved.
  bool try_advance() override;
  Doorbell* doorbell_if_busy() override { return nullptr; }

 private:
  // These require busy_.
  bool advance();
  bool advance(PhasedCall& call, std::size_t limit);
  void keep(std::exception_ptr error) noexcept;

  const std::function<void(const std::exception_ptr&)> on_error_;
  // A spin lock. A thread that advances calls may re-enter through the progress of others, and must
  // then skip.
  mutable std::atomic_flag busy_;
  std::deque<std::shared_ptr<PhasedCall>> calls_;
  std::exception_ptr error_;
};

// Starts the work. If it throws CallsDiffer, then or later, the error names the peer by its rank in
// the hierarchical group, and both calls by the number of `whole`: ranks that have agreed so far
// number their calls alike. ranks[i] is the rank in the hierarchical group of rank i of the work's
// group.
Work part_of_call(const std::function<Work()>& start, std::chrono::milliseconds timeout,
                  std::vector<int> ranks, const Call& whole);

// The works of a phase that has only the one that `start` starts: in the group of this host's
// ranks, or in the group of the ranks with this index on their hosts.
std::vector<Work> within_host_part(const HierarchyLevels& levels, const Call& whole,
                                   const std::function<Work()>& start);
std::vector<Work> between_hosts_part(const HierarchyLevels& levels, const Call& whole,
                                     const std::function<Work()>& start);
std::vector<Work> works_of(Work work);

}  // namespace lockstep::hierarchical
