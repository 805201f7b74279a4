// SPDX-License-Identifier: BSD-3-Clause
// An autograd engine that makes the hooks of saved tensors.
#include "lockstep/parallel/saved_tensors.h"

#include <typeinfo>
#include <utility>

#include <torch/csrc/autograd/engine.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using torch::autograd::Engine;
using torch::autograd::SavedVariableHooks;

thread_local SavedTensorKeeper* innermost_keeper = nullptr;

// Autograd asks its engine for hooks whenever it saves a tensor.
class HookingEngine final : public Engine {
 public:
  ~HookingEngine() override { stop(); }
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    return innermost_keeper ? innermost_keeper->make_hooks() : nullptr;
  }
};

// Lives as long as the process: its threads may run when static objects are destroyed.
Engine& hooking_engine() {
  static auto& engine = *new HookingEngine;
  return engine;
}

// Python's engine has hooks of its own, and replaces any other when Python's torch is imported.
void require_hooking_engine() {
  static const bool installed = [] {
    const Engine& present = Engine::get_default_engine();
    if (typeid(present) != typeid(Engine)) return false;
    torch::autograd::set_default_engine_stub(hooking_engine);
    return true;
  }();
  if (installed && &Engine::get_default_engine() == &hooking_engine()) return;
  throw UsageError({.component = "checkpoint"},
                   "the autograd engine of this process belongs to Python, whose hooks for saved "
                   "tensors C++ cannot reach",
                   "call torch.utils.checkpoint from Python, or checkpoint() in a process without "
                   "Python");
}

}  // namespace

SavedTensorGuard::SavedTensorGuard(SavedTensorKeeper& keeper) : outer_(innermost_keeper) {
  require_hooking_engine();
  innermost_keeper = &keeper;
}

SavedTensorGuard::~SavedTensorGuard() {
  innermost_keeper = outer_;
}

}  // namespace lockstep
