// SPDX-License-Identifier: BSD-3-Clause
// Public. What DataParallel and DistributedDataParallel have in common: their base class, and how
// they hold the module that they wrap: by its holder (made by TORCH_MODULE) or by a shared_ptr,
// which does not own a module that somebody else owns, such as one on the stack. A TorchScript
// module is held in a ScriptModule.
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace lockstep {

// The wrapped module is registered as "module": parameters(), train(), to() and so on reach it.
class ParallelModule : public torch::nn::Module {
 public:
  ParallelModule(const ParallelModule&) = delete;
  ParallelModule& operator=(const ParallelModule&) = delete;

  // For functions that take any wrapped model, as ParallelModule&, DataParallelBase& or
  // DistributedDataParallelBase&. UsageError if the wrapped module's forward does not take one
  // tensor and return one.
  at::Tensor forward(const at::Tensor& input) { return forward_tensor(input); }
  at::Tensor operator()(const at::Tensor& input) { return forward_tensor(input); }

  // Saves and loads the wrapped module itself: names have no prefix, and torch::save and
  // torch::load of the wrapper and of the module use the same file.
  void save(torch::serialize::OutputArchive& archive) const override { inner_->save(archive); }
  void load(torch::serialize::InputArchive& archive) override { inner_->load(archive); }

 protected:
  // UsageError if the module is null.
  ParallelModule(std::string name, std::shared_ptr<torch::nn::Module> module);
  torch::nn::Module& inner() const { return *inner_; }
  [[noreturn]] void refuse_tensor() const;

 private:
  virtual at::Tensor forward_tensor(const at::Tensor& input) = 0;

  std::shared_ptr<torch::nn::Module> inner_;
};

// A TorchScript module as a torch::nn::Module. Its parameters, buffers and submodules are the
// script's own, with the same names: changes of one appear in the other. If the script gets new
// ones, wrap it again.
class ScriptModule : public torch::nn::Module {
 public:
  explicit ScriptModule(torch::jit::Module script);

  // As in torch::jit::Module: arguments and result are whatever the script's forward takes and
  // returns.
  torch::jit::IValue forward(std::vector<torch::jit::IValue> inputs) {
    return script_.forward(std::move(inputs));
  }

  // The script itself, for saving and for calling its other methods.
  const torch::jit::Module& script() const { return script_; }
  torch::jit::Module& script() { return script_; }

  // Also sets the script's mode.
  void train(bool on = true) override;
  // The clone has a copy of the script.
  std::shared_ptr<torch::nn::Module> clone(
      const c10::optional<torch::Device>& device = {}) const override;
  void pretty_print(std::ostream& stream) const override;

 private:
  torch::jit::Module script_;
};

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

// The base of the wrappers' holders. A holder's module is reached by `->`; what programs often call
// by `.` says so.
template <class Wrapper>
class WrapperHolder : public torch::nn::ModuleHolder<Wrapper> {
 public:
  using torch::nn::ModuleHolder<Wrapper>::ModuleHolder;

  template <class W = Wrapper, class... Arguments>
  W* module(Arguments&&...) const {
    return say_arrow<W>();
  }
  template <class W = Wrapper, class... Arguments>
  W* no_sync(Arguments&&...) const {
    return say_arrow<W>();
  }
  template <class W = Wrapper, class... Arguments>
  W* train(Arguments&&...) const {
    return say_arrow<W>();
  }
  template <class W = Wrapper>
  W* eval() const {
    return say_arrow<W>();
  }

 private:
  template <class W>
  static W* say_arrow() {
    static_assert(!std::same_as<W, Wrapper>,
                  "a wrapper is a holder, like libtorch's modules, so its members are reached by "
                  "->: model->module(), model->no_sync(), model->train(), model->eval(), "
                  "model->parameters()");
    return nullptr;
  }
};

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
