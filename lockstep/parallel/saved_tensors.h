// SPDX-License-Identifier: BSD-3-Clause
// What autograd saves for backward, handed to an object of ours: PyTorch's saved_tensors_hooks,
// which libtorch offers only to Python.
#pragma once

#include <memory>

#include <torch/csrc/autograd/saved_variable_hooks.h>

namespace lockstep {

class SavedTensorKeeper {
 public:
  virtual ~SavedTensorKeeper() = default;
  // Makes the hooks of one saved tensor. Autograd gives them the tensor once, and asks for it in
  // each backward; on GPUs on a thread of its own.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() = 0;
};

// While it lives, the keeper gets what autograd saves on this thread. Guards may be nested: the
// innermost counts.
class SavedTensorGuard {
 public:
  // UsageError in a process whose autograd engine belongs to Python.
  explicit SavedTensorGuard(SavedTensorKeeper& keeper);
  SavedTensorGuard(const SavedTensorGuard&) = delete;
  SavedTensorGuard& operator=(const SavedTensorGuard&) = delete;
  ~SavedTensorGuard();

 private:
  SavedTensorKeeper* outer_;
};

}  // namespace lockstep
