// SPDX-License-Identifier: BSD-3-Clause
// For tests of code on GPUs where there is none: a libtorch without CUDA gets devices cuda:0 to
// cuda:7, whose memory is the host's and whose streams are threads. Their
// operators are the host's. A program has them by linking this file.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "nccl/thread_streams.h"
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace lockstep::testing {
namespace {

constexpr c10::DeviceIndex kDevices = 8;
// Of each device: the default stream, and two pools. Streams that wait for peers must not be one.
constexpr int kPool = 32;
constexpr int kStreams = 1 + 2 * kPool;

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kDevices> current_streams{};

ThreadStream& stream_of(const c10::Stream& stream) {
  return thread_stream(stream.device_index() * kStreams + static_cast<int>(stream.id()));
}

c10::Stream numbered(c10::Device device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, device, id);
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return at::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {at::kCUDA, current_device}; }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) current_device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }

  c10::Stream getStream(c10::Device device) const override {
    const auto index = device.has_index() ? device.index() : current_device;
    return numbered({at::kCUDA, index}, current_streams[static_cast<std::size_t>(index)]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return numbered(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    static std::atomic<int> next = 0;
    static const bool all_started = [device] {
      for (int id = 1; id < kStreams; ++id) stream_of(numbered(device, id)).enqueue([] {});
      return true;
    }();
    static_cast<void>(all_started);  // so that later groups need no more than the first
    return numbered(device, 1 + (high_priority ? kPool : 0) + next++ % kPool);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    current_streams[static_cast<std::size_t>(stream.device_index())] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return &stream_of(stream);
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = new StreamEvent;
    static_cast<StreamEvent*>(*event)->record(stream_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) static_cast<StreamEvent*>(event)->block(stream_of(stream));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || static_cast<StreamEvent*>(event)->done();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<StreamEvent*>(event);
  }
  bool queryStream(const c10::Stream& stream) const override { return stream_of(stream).idle(); }
  void synchronizeStream(const c10::Stream& stream) const override {
    stream_of(stream).synchronize();
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

class DeviceMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* memory = std::malloc(std::max<std::size_t>(bytes, 1));
    TORCH_CHECK(memory != nullptr, "no memory for ", bytes, " bytes");
    return {memory, memory, &std::free, {at::kCUDA, current_device}};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};
DeviceMemory memory;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);

at::Tensor empty(c10::SymIntArrayRef sizes, std::optional<at::ScalarType> type,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(sizes), &memory, kKeys,
                                   type.value_or(at::kFloat), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                         std::optional<at::ScalarType> type, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(sizes),
                                           C10_AS_INTARRAYREF_SLOW(strides), &memory, kKeys,
                                           type.value_or(at::kFloat));
}

at::Tensor seen_from_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       at::TensorOptions(tensor.scalar_type()));
}

// After what the current streams of both had to do.
at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool) {
  for (const at::Tensor& tensor : {to, from}) {
    if (!tensor.is_cpu()) stream_of(Guard().getStream(tensor.device())).synchronize();
  }
  seen_from_host(to).copy_(seen_from_host(from));
  return to;
}

at::Tensor& fill(at::Tensor& tensor, const at::Scalar& value) {
  stream_of(Guard().getStream(tensor.device())).synchronize();
  seen_from_host(tensor).fill_(value);
  return tensor;
}

at::Tensor as_strided(const at::Tensor& tensor, c10::SymIntArrayRef sizes,
                      c10::SymIntArrayRef strides, std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      tensor, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
      offset ? std::optional(offset->expect_int()) : std::nullopt);
}

at::Tensor view(const at::Tensor& tensor, c10::SymIntArrayRef sizes) {
  return at::native::view(tensor, C10_AS_INTARRAYREF_SLOW(sizes));
}

void compute_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

// What an operator computed on copies goes back.
at::Tensor copy_back(const at::Tensor& from, const at::Tensor& to) {
  TORCH_CHECK(from.sizes() == to.sizes(), "an output that changes its size");
  at::Tensor target = to;
  return copy(target, from, false);
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("copy_", copy);
  library.impl("fill_.Scalar", fill);
  library.impl("as_strided", as_strided);
  library.impl("view", view);
  library.impl("_copy_from_and_resize", copy_back);
}

// All other operators compute on copies in host memory.
TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&compute_on_host>());
}

}  // namespace

}  // namespace lockstep::testing
