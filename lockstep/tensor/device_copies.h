// SPDX-License-Identifier: BSD-3-Clause
// Tensors as code that reads their bytes uses them: the original if its bytes can be used in place,
// else a contiguous copy on the device of that code.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep {

// The devices of the type that libtorch can reach in this process; also 0 if this libtorch was
// built without support for it.
inline int device_count(c10::DeviceType type) {
  if (!c10::impl::hasDeviceGuardImpl(type)) return 0;
  return c10::impl::VirtualGuardImpl(type).deviceCount();
}

// Adds the current index to a device of a GPU that has none, since tensors have one, and since
// another thread may have another current GPU.
inline at::Device with_index(at::Device device) {
  if (device.is_cpu()) return at::kCPU;
  if (device.has_index()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

// Whether the elements differ from what the tensor's memory holds: libtorch conjugates and negates
// when the elements are used, and a tensor of zeros that it made for a derivative has no memory.
// Whoever reads data_ptr() must ask. Autograd hands over such gradients, and conj(), imag() and
// their kind return such tensors.
inline bool is_lazy(const at::Tensor& tensor) {
  return tensor.is_conj() || tensor.is_neg() || tensor._is_zerotensor();
}

inline bool is_usable_on(at::Device device, const at::Tensor& tensor) {
  return tensor.device() == device && tensor.is_contiguous() && !is_lazy(tensor);
}
// Takes no part in autograd.
at::Tensor usable_on(at::Device device, const at::Tensor& tensor);
inline at::Tensor on_host(const at::Tensor& tensor) {
  return usable_on(at::kCPU, tensor);
}

// The copies that stand in for tensors during a call.
class DeviceCopies {
 public:
  explicit DeviceCopies(at::Device device = at::kCPU) : device_(device) {}

  // The tensor to read in place of the original.
  at::Tensor input(const at::Tensor& original) const { return usable_on(device_, original); }
  // The tensor to write in place of the original. The reference is valid until the next call.
  const at::Tensor& output(const at::Tensor& original) {
    return is_usable_on(device_, original) ? original : copy_of(original);
  }
  // The same with another type, for more exact results.
  at::Tensor output_as(const at::Tensor& original, at::ScalarType type);
  // Whether an original is on a device other than the backend's.
  bool go_elsewhere() const;
  bool empty() const { return copies_.empty(); }
  // Copies the results to the originals, each copy only once. Call it when the results are ready,
  // or precede this call on the current stream.
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
