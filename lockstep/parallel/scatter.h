// SPDX-License-Identifier: BSD-3-Clause
// How a batch is cut into a part for each replica.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

// A cut of `size` samples along a dimension into parts of equal length; where that is impossible
// the first ones have a sample more. (torch.chunk, which PyTorch's DataParallel takes, may leave a
// last part of one sample, on which BatchNorm fails.)
class Scatter {
 public:
  Scatter(std::int64_t dim, std::int64_t size, int parts) : dim_(dim), size_(size), parts_(parts) {}

  int parts() const { return parts_; }
  std::int64_t dim() const { return dim_; }
  std::int64_t begin(int part) const;
  std::int64_t length(int part) const { return begin(part + 1) - begin(part); }

  // Whether a tensor is cut. Those without this dimension go to every replica whole.
  bool cuts(const at::Tensor& tensor) const { return tensor.dim() > dim_; }

  // A copy of the part, or of all of a tensor that is not cut, on the device; without a history. On
  // one device views would do, but then a replica's changes in place would be seen by the others'
  // version counters, and the program's changes of its batch before backward by nobody.
  at::Tensor part(const at::Tensor& tensor, int part, at::Device device) const;

 private:
  std::int64_t dim_;
  std::int64_t size_;
  int parts_;
};

// The cut for inputs of which each has its samples along dim: at most as many parts as samples, and
// at least one. Nothing if no input has that dimension. UsageError if they disagree on the number
// of samples.
std::optional<Scatter> plan_scatter(const std::vector<at::Tensor>& inputs, std::int64_t dim,
                                    int most_parts);

}  // namespace lockstep
