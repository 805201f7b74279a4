// SPDX-License-Identifier: BSD-3-Clause
// Ranges of a flat tensor, and parts of it that lie in other buffers.
#pragma once

#include <algorithm>
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

namespace lockstep {

// Contiguous elements.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;

  std::int64_t end() const { return begin + count; }
  bool contains(ElementRange other) const { return other.begin >= begin && other.end() <= end(); }
};

// The elements that both ranges contain; a count of 0 if there are none.
inline ElementRange overlap(ElementRange a, ElementRange b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max<std::int64_t>(0, std::min(a.end(), b.end()) - begin)};
}

// Elements that lie in another buffer: `values`, contiguous and of the tensor's type, stand for the
// tensor's elements from `begin` on.
struct Piece {
  std::int64_t begin = 0;
  at::Tensor values;

  ElementRange range() const { return {begin, values.numel()}; }
};

// Copies the piece to its place in a 1-D tensor.
inline void copy_into(const at::Tensor& tensor, const Piece& piece) {
  const at::NoGradGuard no_grad;
  tensor.narrow(0, piece.begin, piece.values.numel()).copy_(piece.values.view(-1));
}

}  // namespace lockstep
