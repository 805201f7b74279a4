// SPDX-License-Identifier: BSD-3-Clause
// Tensors as backends use them: themselves where their bytes can be used as they are, else a
// contiguous copy on the device on which the backend works.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

inline bool is_usable_on(at::Device device, const at::Tensor& tensor) {
  return tensor.device() == device && tensor.is_contiguous() && !tensor.is_conj() &&
         !tensor.is_neg();
}
at::Tensor usable_on(at::Device device, const at::Tensor& tensor);
inline at::Tensor on_host(const at::Tensor& tensor) {
  return usable_on(at::kCPU, tensor);
}

// The copies in whose place the originals get the results.
class DeviceCopies {
 public:
  explicit DeviceCopies(at::Device device = at::kCPU) : device_(device) {}

  // What to use for a tensor that is read.
  at::Tensor input(const at::Tensor& original) const { return usable_on(device_, original); }
  // What to use for a tensor that is written; good until the next one.
  const at::Tensor& output(const at::Tensor& original) {
    return is_usable_on(device_, original) ? original : copy_of(original);
  }
  // The same as another type, which takes the results more exactly.
  at::Tensor output_as(const at::Tensor& original, at::ScalarType type);
  // Whether an original is on another device than the backend's work.
  bool go_elsewhere() const;
  bool empty() const { return copies_.empty(); }
  // Once the results are there, or after them on the current stream; copies each only once.
  void copy_back();

 private:
  struct Copy {
    at::Tensor original;
    at::Tensor staged;
  };
  const at::Tensor& copy_of(const at::Tensor& original);

  at::Device device_;
  std::vector<Copy> copies_;
};

}  // namespace lockstep
