// SPDX-License-Identifier: BSD-3-Clause
// A parameter, its gradient and its state as flat memory, element beside element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "lockstep/optim/update_log.h"
#include "lockstep/tensor/piece.h"

namespace lockstep::optim {

// Copies the elements of `tensor`, which has the shape of the parameter, that belong to `part`.
at::Tensor part_of(const at::Tensor& tensor, const at::Tensor& parameter, ElementRange part);

// Where the elements of a part of a parameter lie on the ranks that share memory.
struct OtherRanks {
  // The addresses on every rank, by rank, if the gradients are still to be averaged; otherwise
  // empty.
  std::span<std::byte* const> gradients = {};
  // The addresses on the other ranks, which get the new values as well.
  std::span<std::byte* const> copies = {};
};

// A part of a parameter of which the ranks of the host have one copy.
struct LoggedPart {
  UpdateLog* log = nullptr;
  const UpdateLog::Part* part = nullptr;
  bool averages = false;  // as in UpdateLog::update
  int kinds = 0;          // likewise
};

// Lives for one update. Must be made and used without gradient mode. The parameter must have a
// strided gradient of its own type, and stay alive.
class DenseParameter {
 public:
  explicit DenseParameter(const at::Tensor& parameter);
  // A part of a parameter without gaps, as if it were a parameter of one dimension. The caller owns
  // the lists.
  DenseParameter(const at::Tensor& parameter, ElementRange part, const OtherRanks& others = {});
  // The log has the part's values, gradients and state.
  explicit DenseParameter(const LoggedPart& logged);

  const at::Tensor& parameter() const { return parameter_; }
  // The parameter itself, its part, or a copy without gaps between its elements.
  const at::Tensor& values() const { return values_; }
  // The gradient itself, or a copy in the order of the values. Undefined if the part is logged.
  const at::Tensor& gradient() const { return gradient_; }
  const void* gradient_from(std::int64_t element) const {
    return static_cast<const std::byte*>(gradient_.data_ptr()) + element * gradient_.element_size();
  }
  bool has_other_ranks() const { return !others_.gradients.empty() || !others_.copies.empty(); }
  // The elements from begin to end of gradient() become the ranks' mean, if it is not that already.
  void average_gradients(std::int64_t begin, std::int64_t end) const;
  // Stores values() from begin to end in the copies. Others see them after finish_streaming().
  void store_copies(std::int64_t begin, std::int64_t end) const;

  bool is_logged() const { return logged_.log != nullptr; }
  // For a logged part.
  void update_blocks(UpdateLog::UpdateBlock update) const {
    logged_.log->update(*logged_.part, logged_.averages, logged_.kinds, update);
  }

  // Gives a tensor of state, the one of this kind, the order of the values and the type that they
  // are computed in: unchanged if it has both, zeros if it is undefined, a copy otherwise, as for
  // what was loaded. For a logged part, it becomes the log's.
  void fit(at::Tensor& state, std::size_t kind) const;

  // After values() has been overwritten: the parameter has these values, and autograd knows that it
  // has changed. For a part, FlatParameters tells it at the end, equally often on every rank.
  void commit() const;

 private:
  const at::Tensor& parameter_;
  at::Tensor values_;
  at::Tensor gradient_;
  OtherRanks others_;
  LoggedPart logged_;
  bool is_copy_ = false;
  bool is_part_ = false;
};

}  // namespace lockstep::optim
