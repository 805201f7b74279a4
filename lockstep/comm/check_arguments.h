// SPDX-License-Identifier: BSD-3-Clause
// What a process group refuses before a call starts, on this rank alone: UsageError, and the group
// goes on.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/core/piece.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// Of one call. Lives as long as the call is checked.
class ArgumentChecks {
 public:
  ArgumentChecks(const ProcessGroup& group, std::string_view operation)
      : group_(group), operation_(operation) {}

  // "[shm] all_reduce, rank 1 of 4: ", the beginning of every message.
  std::string where() const;

  void new_tensor(at::IntArrayRef sizes, const at::TensorOptions& options) const;
  // At least one; defined and dense.
  void tensors(at::TensorList tensors) const;
  // The same, and each element can be written by itself.
  void outputs(at::TensorList tensors) const;
  // Its type suits the operation and the scale.
  void reducible(const at::Tensor& tensor, AllReduceOptions options) const;
  void root(int root) const;
  // Another rank than this one.
  void peer(int peer) const;
  // One tensor for each rank, all like this one.
  void one_each(at::TensorList tensors, const at::Tensor& like) const;
  // On ranks other than root the list of this name is empty.
  void none(std::string_view list, at::TensorList tensors, int root) const;
  void exchange(at::TensorList outputs, at::TensorList inputs) const;
  // In ascending order.
  void pieces(const at::Tensor& tensor, const std::vector<Piece>& pieces) const;

 private:
  const ProcessGroup& group_;
  const std::string_view operation_;
};

}  // namespace lockstep
