// SPDX-License-Identifier: BSD-3-Clause
// Splits a batch into one part per replica.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

// "[2, 3]", for errors.
std::string sizes_in_words(const at::Tensor& tensor);

// Splits `size` samples along a dimension into parts of equal length; if that is impossible, the
// first parts get one more sample. (torch.chunk, as in PyTorch's DataParallel, may leave a last
// part of one sample, on which BatchNorm fails.)
class Scatter {
 public:
  Scatter(std::int64_t dim, std::int64_t size, int parts) : dim_(dim), size_(size), parts_(parts) {}

  int parts() const { return parts_; }
  std::int64_t dim() const { return dim_; }
  std::int64_t begin(int part) const;
  std::int64_t length(int part) const { return begin(part + 1) - begin(part); }

  // Whether a tensor is split. Tensors without this dimension go to every replica whole.
  bool cuts(const at::Tensor& tensor) const { return tensor.dim() > dim_; }

  // A copy on the device, without a history, of the part, or of the whole tensor if it is not
  // split. Views would suffice on one device. But then the other replicas' version counters would
  // see a replica's in-place changes, and nobody would notice that the program changes its batch
  // before backward.
  at::Tensor part(const at::Tensor& tensor, int part, at::Device device) const;
  // The same for `length` samples from `begin` on.
  at::Tensor copy(const at::Tensor& tensor, std::int64_t begin, std::int64_t length,
                  at::Device device) const;

 private:
  std::int64_t dim_;
  std::int64_t size_;
  int parts_;
};

// The split for inputs with their samples along dim: at most one part per sample, and at least one
// part. nullopt if no input has that dimension. UsageError if they disagree on the number of
// samples.
std::optional<Scatter> plan_scatter(const std::vector<at::Tensor>& inputs, std::int64_t dim,
                                    int most_parts);

}  // namespace lockstep
