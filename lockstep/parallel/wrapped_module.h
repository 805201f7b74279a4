// SPDX-License-Identifier: BSD-3-Clause
// How a wrapper holds the module that it wraps: by its holder (what TORCH_MODULE makes), or by a
// shared_ptr, which for a module that somebody else owns, such as one on the stack, does not own.
// A TorchScript module gets a ScriptModule around it.
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

// Shares ownership if the module has an owner that can be shared, else its owner keeps it alive.
template <PlainModule M>
std::shared_ptr<M> handle_of(M& module) {
  if (auto owner = module.weak_from_this().lock()) return std::shared_ptr<M>(owner, &module);
  return std::shared_ptr<M>(&module, [](M*) {});
}

inline std::shared_ptr<ScriptModule> handle_of(torch::jit::Module module) {
  return std::make_shared<ScriptModule>(std::move(module));
}

// What a handle holds, as a module of any type; null if it holds nothing.
template <class Handle>
std::shared_ptr<torch::nn::Module> pointer_of(const Handle& handle) {
  if constexpr (ModuleHolder<Handle>) {
    return handle ? handle.ptr() : nullptr;
  } else {
    return handle;
  }
}

}  // namespace lockstep
