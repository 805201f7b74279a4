// SPDX-License-Identifier: BSD-3-Clause
// Parts of a flat tensor.
#pragma once

#include <algorithm>
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

namespace lockstep {

// Elements that lie next to each other.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;

  std::int64_t end() const { return begin + count; }
  bool contains(ElementRange other) const { return other.begin >= begin && other.end() <= end(); }
};

// What both have; a count of 0 if they have nothing.
inline ElementRange overlap(ElementRange a, ElementRange b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max<std::int64_t>(0, std::min(a.end(), b.end()) - begin)};
}

// Elements that lie elsewhere: `values`, contiguous and of the tensor's type, stand for those from
// `begin` on.
struct Piece {
  std::int64_t begin = 0;
  at::Tensor values;

  ElementRange range() const { return {begin, values.numel()}; }
};

// Copies them to where they belong in a tensor of one dimension.
inline void bring_in(const at::Tensor& tensor, const Piece& piece) {
  const at::NoGradGuard no_grad;
  tensor.narrow(0, piece.begin, piece.values.numel()).copy_(piece.values.view(-1));
}

}  // namespace lockstep
