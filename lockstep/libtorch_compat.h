// SPDX-License-Identifier: BSD-3-Clause
// Everything that differs between the libtorch versions that Lockstep is built with.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_fused_adam.h>
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>
#if TORCH_VERSION_MAJOR >= 2
#include <ATen/ops/_fused_adamw.h>
#endif
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3)
#include <ATen/ops/_fused_sgd.h>
#endif
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 9)
#include <ATen/DeviceAccelerator.h>
#endif

#include "lockstep/core/error.h"

namespace lockstep::libtorch {

// The pointer that owns a node of the autograd graph: std::shared_ptr in 1.13, c10::intrusive_ptr
// in 2.13.
using NodePointer =
    decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

template <class Pointer, class Node>
struct NodeFactory;

template <class Node>
struct NodeFactory<std::shared_ptr<torch::autograd::Node>, Node> {
  template <class... Arguments>
  static auto make(Arguments&&... arguments) {
    return std::make_shared<Node>(std::forward<Arguments>(arguments)...);
  }
};

template <class Node>
struct NodeFactory<c10::intrusive_ptr<torch::autograd::Node>, Node> {
  template <class... Arguments>
  static auto make(Arguments&&... arguments) {
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  }
};

template <class Node, class... Arguments>
NodePointer make_node(Arguments&&... arguments) {
  return NodeFactory<NodePointer, Node>::make(std::forward<Arguments>(arguments)...);
}

// The types to which autocast converts. Whether autocast is on is part of at::ThreadLocalState in
// every version; the types are part of it only in later ones.
struct AutocastTypes {
  at::ScalarType cpu;
  at::ScalarType cuda;
};

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
inline AutocastTypes autocast_types() {
  return {at::autocast::get_autocast_dtype(at::kCPU), at::autocast::get_autocast_dtype(at::kCUDA)};
}
inline void set_autocast_types(const AutocastTypes& types) {
  at::autocast::set_autocast_dtype(at::kCPU, types.cpu);
  at::autocast::set_autocast_dtype(at::kCUDA, types.cuda);
}
inline bool is_autocast_enabled(at::DeviceType device) {
  return at::autocast::is_autocast_enabled(device);
}
inline void set_autocast_enabled(at::DeviceType device, bool enabled) {
  at::autocast::set_autocast_enabled(device, enabled);
}
#else
inline AutocastTypes autocast_types() {
  return {at::autocast::get_autocast_cpu_dtype(), at::autocast::get_autocast_gpu_dtype()};
}
inline void set_autocast_types(const AutocastTypes& types) {
  at::autocast::set_autocast_cpu_dtype(types.cpu);
  at::autocast::set_autocast_gpu_dtype(types.cuda);
}
inline bool is_autocast_enabled(at::DeviceType device) {
  return device == at::kCPU ? at::autocast::is_cpu_enabled() : at::autocast::is_enabled();
}
inline void set_autocast_enabled(at::DeviceType device, bool enabled) {
  device == at::kCPU ? at::autocast::set_cpu_enabled(enabled) : at::autocast::set_enabled(enabled);
}
#endif

// Whether CPUs have the kernels of layers in float16.
constexpr bool kHasHalfOnCpu = TORCH_VERSION_MAJOR > 2 ||
                               (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3);

// The stream's CUDA handle; 1.13 exposes it only through CUDA's headers.
template <class Stream>
void* native_handle(const Stream& stream) {
  if constexpr (requires { stream.native_handle(); }) {
    return stream.native_handle();
  } else {
    throw BackendError(
        "the backend nccl needs a later libtorch: this one does not show its CUDA streams");
  }
}

// The peak of the memory in use by libtorch's allocator on a GPU, in bytes; nullopt before 2.9,
// where only CUDA's headers expose it.
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 9)
inline std::optional<std::int64_t> peak_memory(at::Device device) {
  using c10::CachingAllocator::StatType;
  return at::accelerator::getDeviceStats(device.index())
      .allocated_bytes[static_cast<std::size_t>(StatType::AGGREGATE)]
      .peak;
}
#else
inline std::optional<std::int64_t> peak_memory(at::Device) {
  return {};
}
#endif

// The type of the totals that allocators report to MemoryReportingInfoBase.
template <class Total>
Total type_of_total(void (c10::MemoryReportingInfoBase::*report)(void*, std::int64_t, Total, Total,
                                                                 c10::Device));
using ReportedTotal = decltype(type_of_total(&c10::MemoryReportingInfoBase::reportMemoryUsage));

// Receives the warnings on a thread while a warnings::WarningHandlerGuard lives.
#if TORCH_VERSION_MAJOR >= 2
namespace warnings = c10::WarningUtils;
#else
namespace warnings = c10::Warning;
#endif
class WarningReceiver : public c10::WarningHandler {
 private:
  virtual void receive(const std::string& message) = 0;
#if TORCH_VERSION_MAJOR >= 2
  void process(const c10::Warning& warning) final {
    receive(warning.msg());
  }
#else
  void process(const c10::SourceLocation&, const std::string& message, bool) final {
    receive(message);
  }
#endif
};

// Warns through libtorch, which adds the name of a file and a function: Lockstep's, and the public
// function that the program called, not those of the line that warns, as TORCH_WARN would.
inline void warn(const char* function, const std::string& message) {
  const c10::SourceLocation place{function, "lockstep", 0};
#if TORCH_VERSION_MAJOR >= 2
  c10::warn(c10::Warning(c10::UserWarning(), place, message, /*verbatim=*/false));
#else
  c10::Warning::warn(place, message, /*verbatim=*/false);
#endif
}

// The same, once for this flag, unless the program wants every warning (WarnAlways).
inline void warn_once(std::atomic_flag& warned, const char* function, const std::string& message) {
  if (!warned.test_and_set() || warnings::get_warnAlways()) warn(function, message);
}

// Sets whether deterministic algorithms also fill new memory, and returns whether they did; false
// in versions that never do.
template <class Context = at::Context>
bool fill_uninitialized_memory(bool fill) {
  Context& context = at::globalContext();
  if constexpr (requires { context.setDeterministicFillUninitializedMemory(fill); }) {
    const bool filled = context.deterministicFillUninitializedMemory();
    context.setDeterministicFillUninitializedMemory(fill);
    return filled;
  } else {
    return false;
  }
}

// The key of a parameter's state in an optimizer.
inline auto state_key(const at::Tensor& parameter) {
#if TORCH_VERSION_MAJOR >= 2
  return static_cast<void*>(parameter.unsafeGetTensorImpl());
#else
  return c10::guts::to_string(parameter.unsafeGetTensorImpl());
#endif
}

// An element type that is not in every version, by its name in Python; nullopt if this libtorch
// does not have it.
inline std::optional<at::ScalarType> later_type([[maybe_unused]] std::string_view dtype) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3)
  if (dtype == "uint16") return at::ScalarType::UInt16;
  if (dtype == "uint32") return at::ScalarType::UInt32;
  if (dtype == "uint64") return at::ScalarType::UInt64;
  if (dtype == "float8_e4m3fn") return at::ScalarType::Float8_e4m3fn;
  if (dtype == "float8_e5m2") return at::ScalarType::Float8_e5m2;
  if (dtype == "float8_e4m3fnuz") return at::ScalarType::Float8_e4m3fnuz;
  if (dtype == "float8_e5m2fnuz") return at::ScalarType::Float8_e5m2fnuz;
#endif
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 7)
  if (dtype == "float8_e8m0fnu") return at::ScalarType::Float8_e8m0fnu;
#endif
  return std::nullopt;
}

// The arguments of libtorch's fused kernels. Lists are of equal length, or empty.
struct FusedAdam {
  at::TensorList values;
  at::TensorList gradients;
  at::TensorList exp_avgs;
  at::TensorList exp_avg_sqs;
  at::TensorList max_exp_avg_sqs;  // empty unless amsgrad
  at::TensorList steps;            // floats on the device
  double lr;
  double beta1;
  double beta2;
  double weight_decay;
  double eps;
  at::Tensor gradient_scale;  // divides the gradients, in place; may be undefined
};

struct FusedSgd {
  double lr;
  double weight_decay;
  double momentum;
  double dampening;
  bool nesterov;
  at::Tensor gradient_scale;  // as above
};

// Calls a kernel with the scale, if there is one, as the last argument.
template <class Kernel>
void with_gradient_scale(const at::Tensor& scale, const Kernel& kernel) {
  scale.defined() ? kernel(scale) : kernel();
}

// Each returns false, and does nothing, if this libtorch has no such kernel.
inline bool fused_adam(const FusedAdam& call) {
  with_gradient_scale(call.gradient_scale, [&](const auto&... scale) {
    at::_fused_adam_(call.values, call.gradients, call.exp_avgs, call.exp_avg_sqs,
                     call.max_exp_avg_sqs, call.steps, call.lr, call.beta1, call.beta2,
                     call.weight_decay, call.eps, !call.max_exp_avg_sqs.empty(),
                     /*maximize=*/false, scale...);
  });
  return true;
}

inline bool fused_adamw([[maybe_unused]] const FusedAdam& call) {
#if TORCH_VERSION_MAJOR >= 2
  with_gradient_scale(call.gradient_scale, [&](const auto&... scale) {
    at::_fused_adamw_(call.values, call.gradients, call.exp_avgs, call.exp_avg_sqs,
                      call.max_exp_avg_sqs, call.steps, call.lr, call.beta1, call.beta2,
                      call.weight_decay, call.eps, !call.max_exp_avg_sqs.empty(),
                      /*maximize=*/false, scale...);
  });
  return true;
#else
  return false;
#endif
}

inline bool fused_sgd([[maybe_unused]] at::TensorList values,
                      [[maybe_unused]] at::TensorList gradients,
                      [[maybe_unused]] at::TensorList momentum_buffers,
                      [[maybe_unused]] const FusedSgd& options) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3)
  with_gradient_scale(options.gradient_scale, [&](const auto&... scale) {
    at::_fused_sgd_(values, gradients, momentum_buffers, options.weight_decay, options.momentum,
                    options.lr, options.dampening, options.nesterov, /*maximize=*/false,
                    /*is_first_step=*/false, scale...);
  });
  return true;
#else
  return false;
#endif
}

// Later versions serve a c10d::TCPStore with libuv by default, and throw if they were built without
// it, as Debian's are. Clients talk to both kinds of server in the same way.
template <class Options>
void do_without_libuv(Options& options) {
  if constexpr (requires { options.useLibUV; }) options.useLibUV = false;
}

}  // namespace lockstep::libtorch
