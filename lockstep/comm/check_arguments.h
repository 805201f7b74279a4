// SPDX-License-Identifier: BSD-3-Clause
// Checks a call's arguments before it starts, on this rank alone. Throws UsageError; the group
// stays usable.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/core/backend.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/membership.h"
#include "lockstep/tensor/piece.h"
#include "lockstep/tensor/reduce_op.h"

namespace lockstep {

// For one call; lives only while the call is checked.
class ArgumentChecks {
 public:
  // `device`: where the tensors of the group live.
  ArgumentChecks(const Backend& backend, const Membership& membership, at::Device device,
                 std::string_view operation)
      : backend_(backend), membership_(membership), device_(device), operation_(operation) {}

  // Where every error of this call occurs: "[shm] all_reduce, rank 1 of 4".
  ErrorContext context() const;

  void new_tensor(at::IntArrayRef sizes, const at::TensorOptions& options) const;
  // There is at least one tensor, and all are defined and dense.
  void tensors(at::TensorList tensors) const;
  // As tensors(), and no two elements of a tensor share memory.
  void outputs(at::TensorList tensors) const;
  void contiguous(const at::Tensor& output) const;
  // The tensor's type suits the operation and the scale.
  void reducible(const at::Tensor& tensor, AllReduceOptions options) const;
  void root(int root) const;
  // `peer` is a rank other than this one.
  void peer(int peer) const;
  // One tensor for each rank, all like the given one.
  void one_each(at::TensorList tensors, const at::Tensor& like) const;
  // `all` has the type of `part`, and its number of elements for each rank.
  void parts(const at::Tensor& all, const at::Tensor& part) const;
  // The list of this name is empty on ranks other than root.
  void none(std::string_view list, at::TensorList tensors, int root) const;
  void exchange(at::TensorList outputs, at::TensorList inputs) const;
  // The tensor is 1-D. The pieces are in ascending order, do not overlap, are contiguous and of its
  // type.
  void pieces(const at::Tensor& tensor, const std::vector<Piece>& pieces) const;

 private:
  [[noreturn]] void refuse(const std::string& cause, const std::string& remedy = {}) const;

  int rank() const { return membership_.rank; }
  int size() const { return membership_.world_size; }

  const Backend& backend_;
  const Membership& membership_;
  const at::Device device_;
  const std::string_view operation_;
};

}  // namespace lockstep
