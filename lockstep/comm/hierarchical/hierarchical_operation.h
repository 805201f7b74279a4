// SPDX-License-Identifier: BSD-3-Clause
// A call of a hierarchical group that is under way: its tensors and its phases.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/hierarchical/hierarchy_levels.h"
#include "lockstep/comm/hierarchical/phases.h"
#include "lockstep/tensor/device_copies.h"

namespace lockstep::hierarchical {

class HierarchicalOperation final : public Operation {
 public:
  // `context`: of the errors that it throws.
  HierarchicalOperation(std::shared_ptr<HierarchyLevels> levels, std::shared_ptr<PhasedCalls> calls,
                        ErrorContext context, std::chrono::milliseconds timeout)
      : levels_(std::move(levels)),
        calls_(std::move(calls)),
        context_(std::move(context)),
        timeout_(timeout) {}

  // The tensor to read or to write in place of the original, as a 1-D tensor.
  at::Tensor flat_input(const at::Tensor& original) const;
  at::Tensor flat_output(const at::Tensor& original);
  // The same for sums: half types are summed as floats throughout, and rounded once.
  at::Tensor flat_term(const at::Tensor& original) const;
  at::Tensor flat_sum(const at::Tensor& original);

  // The call that ranks compare, for the next of `tensors` tensors.
  Call next(Call call, std::size_t tensors);
  void start(std::vector<PhasedCall::Phase> phases);
  // The part that the group of all ranks carries out.
  void delegate(Work work) { delegated_ = std::move(work); }

  bool poll() override;
  void wait(const Deadline& deadline) override;
  Deadline default_deadline() const override { return Deadline::after(timeout_); }

 private:
  bool done() const;
  // True when the operation is done. The deadline is the wait's, for messages.
  bool advance(const Deadline& deadline);
  std::shared_ptr<HierarchyLevels> levels_;
  std::shared_ptr<PhasedCalls> calls_;
  ErrorContext context_;
  std::chrono::milliseconds timeout_;
  std::int32_t tensors_ = 0;
  std::vector<std::shared_ptr<PhasedCall>> parts_;
  Work delegated_;
  DeviceCopies copies_;
};

}  // namespace lockstep::hierarchical
