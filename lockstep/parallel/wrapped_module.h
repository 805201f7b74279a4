// SPDX-License-Identifier: BSD-3-Clause
// How a wrapper holds its module: by its holder (made by TORCH_MODULE) or by a shared_ptr, which
// does not own a module that somebody else owns, such as one on the stack. A TorchScript module is
// held in a ScriptModule.
#pragma once

#include <concepts>
#include <memory>
#include <type_traits>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "lockstep/parallel/script_module.h"

namespace lockstep {

template <class M>
concept ModuleHolder = std::is_base_of_v<torch::detail::ModuleHolderIndicator, M>;

template <class M>
concept TorchScript = std::same_as<M, ScriptModule>;

template <class M>
concept PlainModule = std::derived_from<M, torch::nn::Module>;

// Whether forward takes a tensor and returns one.
template <class Handle>
concept MapsTensor = requires(Handle& module, at::Tensor input) {
  { module->forward(input) } -> std::convertible_to<at::Tensor>;
};

template <class M>
struct WrappedModule {
  static_assert(PlainModule<M>,
                "wrap a module: a holder made by TORCH_MODULE, a std::shared_ptr to a module, or a "
                "struct that is derived from torch::nn::Module");
  using Handle = std::shared_ptr<M>;
};

template <ModuleHolder M>
struct WrappedModule<M> {
  using Handle = M;
};

// Shares ownership if the module is owned by a shared_ptr; otherwise the module's owner keeps it
// alive.
template <PlainModule M>
std::shared_ptr<M> handle_of(M& module) {
  if (auto owner = module.weak_from_this().lock()) return std::shared_ptr<M>(owner, &module);
  return std::shared_ptr<M>(&module, [](M*) {});
}

// Empty for a null pointer.
template <PlainModule M>
std::shared_ptr<M> handle_of(M* module) {
  return module ? handle_of(*module) : nullptr;
}

inline std::shared_ptr<ScriptModule> handle_of(torch::jit::Module module) {
  return std::make_shared<ScriptModule>(std::move(module));
}

// The module in a handle, as a torch::nn::Module; null if the handle is empty.
template <class Handle>
std::shared_ptr<torch::nn::Module> pointer_of(const Handle& handle) {
  if constexpr (ModuleHolder<Handle>) {
    return handle ? handle.ptr() : nullptr;
  } else {
    return handle;
  }
}

}  // namespace lockstep
