// SPDX-License-Identifier: BSD-3-Clause
// The group of a reducer. An error while it reduces ends the group for every rank, since the others
// would wait for the part of this rank, which will not arrive.
#pragma once

#include <exception>
#include <memory>
#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/parallel/uneven_batches.h"

namespace lockstep {

// The operation of errors in a backward.
inline constexpr const char* kReducingGradients = "reducing gradients";

class ReducerGroup {
 public:
  explicit ReducerGroup(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}

  ProcessGroup& operator*() const { return *group_; }
  ProcessGroup* operator->() const { return group_.get(); }
  // The context of errors in a step of the operation, such as "reducing gradients".
  ErrorContext context(const std::string& operation = {}) const;

  // Runs a function that uses the group. An error ends the group, and is rethrown with a hint at
  // its most frequent cause.
  template <class Function>
  void reduce(Function&& function) {
    const CallScope scope(CallOrigin::backward);
    try {
      function();
    } catch (const std::exception& error) {
      rethrow(error);
    }
  }
  // Throws a UsageError that has nothing to do with the other ranks. To be called where an
  // exception ends the backward, or within reduce().
  [[noreturn]] void refuse(const std::string& cause, const std::string& remedy = {});
  // Lets the exception that is being handled leave reduce() as it is.
  void note_refusal(const std::exception& error) { failure_ = short_message(error); }
  // Ends the group, with the first reason.
  void end(const std::string& reason) noexcept;
  // Error if the group has ended in this way.
  void require_usable() const;

  // For join(): whether each step is announced to the ranks that have no batches left.
  void announce_steps(bool on) { announces_ = on; }
  bool announces_steps() const { return announces_; }
  // Collective if steps are announced; otherwise nothing happens, and the root of the result is 0.
  AnnouncedStep announce(JoinStep mine);
  // The root of the step that was announced last.
  int last_root() const { return root_; }

 private:
  [[noreturn]] void rethrow(const std::exception& error);

  std::shared_ptr<ProcessGroup> group_;
  std::string failure_;  // empty unless the group has ended, or is about to
  bool announces_ = false;
  int root_ = 0;
};

}  // namespace lockstep
