// SPDX-License-Identifier: BSD-3-Clause
// A call of a hierarchical group that is under way: its phases, and what an error in one of them
// means to the group of all ranks.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/collective/device_copies.h"
#include "lockstep/collective/hierarchical/hierarchy_levels.h"
#include "lockstep/collective/hierarchical/phases.h"

namespace lockstep {

class HierarchicalOperation final : public Operation {
 public:
  // `where` is the beginning of its errors.
  HierarchicalOperation(std::shared_ptr<HierarchyLevels> levels, std::shared_ptr<PhasedCalls> calls,
                        std::string where, std::chrono::milliseconds timeout)
      : levels_(std::move(levels)),
        calls_(std::move(calls)),
        where_(std::move(where)),
        timeout_(timeout) {}

  // What to use for a tensor that is written, with one dimension.
  at::Tensor flat_output(const at::Tensor& original);
  // The same for sums: half types are summed as floats all the way, and rounded once.
  at::Tensor flat_sum(const at::Tensor& original);

  // Where calls are compared, a phase in which all ranks meet in this call; it comes before those
  // of the tensor that follows, of so many.
  void announce(Call call, std::size_t tensors, std::function<Work(const Call&)> meet);
  void start(std::vector<PhasedCall::Phase> phases);

  bool poll() override;
  void wait(const Deadline& deadline) override;
  Deadline default_deadline() const override { return Deadline::after(timeout_); }

 private:
  void push(std::vector<PhasedCall::Phase> phases);
  bool done() const;
  // True when it is done. The deadline is that of the wait, for messages.
  bool advance(const Deadline& deadline);
  // A group within a host does not know a rank by its number in the group of all; and whoever gave
  // up may have done so because of another.
  [[noreturn]] void explain(const std::exception_ptr& error, const Deadline& waited);

  std::shared_ptr<HierarchyLevels> levels_;
  std::shared_ptr<PhasedCalls> calls_;
  std::string where_;
  std::chrono::milliseconds timeout_;
  std::int32_t announced_ = 0;
  std::vector<std::shared_ptr<PhasedCall>> parts_;
  DeviceCopies copies_;
};

}  // namespace lockstep
