// SPDX-License-Identifier: BSD-3-Clause
// Public. Wraps a module so that backward averages its gradients over the ranks, like
// torch.nn.parallel.DistributedDataParallel.
//
//   auto model = lockstep::DistributedDataParallel(net, group);
//   loss(model(input), target).backward();   // every rank with its own batch
//   optimizer.step();                         // the same step on every rank
//
// Every backward of a step is averaged once the wrapper has been called in it, also the backward
// of a penalty or of the module itself; torch::autograd::grad() is not (functional::grad() is). A
// .grad that the program keeps stays as it is if gradients are then reset to none, not zeroed in
// place. Reducer (reducer.h) has the exact rules.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/SmallVector.h>

#include "lockstep/comm/group_argument.h"
#include "lockstep/parallel/distributed_data_parallel_options.h"
#include "lockstep/parallel/for_each_tensor.h"
#include "lockstep/parallel/moved_input.h"
#include "lockstep/parallel/parallel_module.h"
#include "lockstep/parallel/reducer.h"

namespace lockstep {

class DividedReduction;
class FirstDraw;
enum class JoinStep : std::int32_t;
class KnownParameters;
class OneCopy;

// The part that does not depend on the module's type, for functions that take any model:
//
//   double train_epoch(lockstep::DistributedDataParallelBase& model, Loader& loader);
//
// A DistributedDataParallel<M> can be passed as it is. Reducer's rules for backward apply.
class DistributedDataParallelBase : public ParallelModule {
 public:
  ~DistributedDataParallelBase() override;

  // While the guard lives, forwards are not synchronized: gradients accumulate on this rank, and
  // the next synchronized backward reduces the sum. Buffers are not broadcast. `active` is for
  // loops: const auto guard = model->no_sync(part + 1 < parts);
  NoSync no_sync(bool active = true) const { return reducer_.no_sync(active); }
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  // Names of the parameters that no rank used between the last two reductions.
  std::vector<std::string> unused_parameters() const { return reducer_.unused_parameters(); }
  // Replaces the reduction of a bucket; see Reducer. UsageError with one_copy_per_host.
  void register_comm_hook(CommHook hook);
  // Changes parameters in place, without gradient mode: the function runs once for each copy of
  // them. That is on every rank, or with one_copy_per_host on rank 0 while the other ranks wait,
  // in a collective call whose error reaches every rank. Other hosts then get the values of all
  // parameters from rank 0.
  void change_parameters(const std::function<void()>& function);

  void pretty_print(std::ostream& stream) const override;

  // Internal: what optimizers and clipping use.
  std::shared_ptr<DividedReduction> divided_reduction() const;
  // Internal: the ranks of this host, if they have one copy of the parameters; otherwise null.
  std::shared_ptr<ProcessGroup> ranks_with_one_copy() const;

 protected:
  DistributedDataParallelBase(std::shared_ptr<torch::nn::Module> module,
                              std::shared_ptr<ProcessGroup> group,
                              const DistributedDataParallelOptions& options);

  std::uint64_t before_forward();
  void after_forward(c10::ArrayRef<at::Tensor*> outputs, std::uint64_t before_forward);
  const std::optional<at::Device>& input_device() const { return input_device_; }

 private:
  // Follows the steps of ranks that have batches left.
  friend void join(DistributedDataParallelBase& model, const std::function<void()>& body,
                   const std::function<void()>& follow);

  // Takes part in the next step that another rank announces.
  JoinStep follow_step();
  void broadcast_buffers(int root);
  // Gives every rank the root's parameters, including frozen ones, and buffers.
  void broadcast_state(int root);

  std::shared_ptr<ProcessGroup> group_;
  DistributedDataParallelOptions options_;
  std::optional<at::Device> input_device_;
  std::vector<at::Tensor> buffers_;  // empty if they are not broadcast
  Reducer reducer_;
  std::unique_ptr<OneCopy> one_copy_;                  // null unless asked for
  std::unique_ptr<KnownParameters> known_parameters_;  // on rank 0
  std::unique_ptr<FirstDraw> first_draw_;              // until the first synchronized forward
};

// The module that a DistributedDataParallel<M> holds.
template <class M>
class DistributedDataParallelImpl final : public DistributedDataParallelBase {
 public:
  using Handle = typename WrappedModule<M>::Handle;

  DistributedDataParallelImpl(Handle module, GroupArgument group,
                              const DistributedDataParallelOptions& options)
      : DistributedDataParallelBase(pointer_of(module), group.shared(), options),
        module_(std::move(module)) {}

  // Takes the arguments of the module's forward and returns its result; for_each_tensor.h lists the
  // structures in which tensors are found. Backward through any of them, or through the node that
  // computed it, is synchronized. Moves tensors as device_ids and output_device require. UsageError
  // if a parameter was frozen, unfrozen, converted, moved or resized since wrapping.
  template <class... Arguments>
  auto forward(Arguments&&... arguments) {
    const std::uint64_t begin = before_forward();
    if (input_device()) {
      return finish_forward(
          module_->forward(
              MovedInput<Arguments>(std::forward<Arguments>(arguments), *input_device()).get()...),
          begin);
    }
    return finish_forward(module_->forward(std::forward<Arguments>(arguments)...), begin);
  }
  // For a TorchScript module: model->forward({input}).
  torch::jit::IValue forward(std::vector<torch::jit::IValue> inputs) requires TorchScript<M> {
    return forward<std::vector<torch::jit::IValue>>(std::move(inputs));
  }

  // The wrapped module, as a holder or shared_ptr. Its own forward is not synchronized: in a step
  // without a forward of the wrapper, backward leaves gradients on this rank.
  const Handle& module() const { return module_; }
  Handle& module() { return module_; }

 private:
  at::Tensor forward_tensor(const at::Tensor& input) override {
    if constexpr (TorchScript<M>) {
      return forward({torch::jit::IValue(input)}).toTensor();
    } else if constexpr (MapsTensor<Handle>) {
      return forward(input);
    } else {
      refuse_tensor();
    }
  }

  template <class Output>
  Output finish_forward(Output output, std::uint64_t begin) {
    c10::SmallVector<at::Tensor*, 8> tensors;
    for_each_tensor(output, [&](at::Tensor& tensor) { tensors.push_back(&tensor); });
    after_forward(tensors, begin);
    return output;
  }

  Handle module_;
};

// A holder, as TORCH_MODULE makes them: copies share the model, nullptr is empty, and `->` reaches
// the wrapper, which is itself a module. model(inputs...) is model->forward(inputs...).
//
// M is a holder (Net of TORCH_MODULE(Net), torch::nn::Sequential, ...) or a struct derived from
// torch::nn::Module. It is deduced from a holder, a shared_ptr, or a module by reference or
// pointer, which must outlive the wrapper unless a shared_ptr owns it. For a torch::jit::Module it
// is ScriptModule. Convert the module before wrapping it.
template <class M>
class DistributedDataParallel : public WrapperHolder<DistributedDataParallelImpl<M>> {
  using Holder = WrapperHolder<DistributedDataParallelImpl<M>>;

 public:
  using Handle = typename WrappedModule<M>::Handle;

  DistributedDataParallel(std::nullptr_t = nullptr) : Holder(nullptr) {}
  // What register_module returns.
  DistributedDataParallel(std::shared_ptr<DistributedDataParallelImpl<M>> model)
      : Holder(std::move(model)) {}
  // Collective: gives every rank the parameters and buffers of rank 0. Optimizers may be made
  // before or after. UsageError on every rank if the modules differ, and for options that
  // contradict the module. The group is passed as `group` or `*group`.
  template <class Group, class Options = DistributedDataParallelOptions>
  DistributedDataParallel(Handle module, Group&& group, const Options& options = {})
      : Holder(wrap(std::move(module), std::forward<Group>(group), options)) {}
  template <class Group, class Options = DistributedDataParallelOptions>
  DistributedDataParallel(M& module, Group&& group,
                          const Options& options = {}) requires PlainModule<M>
      : Holder(wrap(handle_of(module), std::forward<Group>(group), options)) {}
  template <class Group, class Options = DistributedDataParallelOptions>
  DistributedDataParallel(M* module, Group&& group,
                          const Options& options = {}) requires PlainModule<M>
      : Holder(wrap(handle_of(module), std::forward<Group>(group), options)) {}
  template <class Group, class Options = DistributedDataParallelOptions>
  DistributedDataParallel(torch::jit::Module module, Group&& group,
                          const Options& options = {}) requires TorchScript<M>
      : Holder(wrap(handle_of(std::move(module)), std::forward<Group>(group), options)) {}

  // Does not compile, and says what is missing.
  template <class Module>
  requires std::same_as<std::remove_cvref_t<Module>, Handle> || std::same_as<Module, M&>
  explicit DistributedDataParallel(Module&&) : Holder(nullptr) {
    static_assert(!std::same_as<Module, Module>,
                  "after the module comes the group: DistributedDataParallel(net, group), with "
                  "what init_process_group() returns");
  }

  template <class... Arguments>
  auto operator()(Arguments&&... arguments) const {
    return this->ptr()->forward(std::forward<Arguments>(arguments)...);
  }
  operator DistributedDataParallelBase&() const { return *this->ptr(); }

 private:
  // Group and Options are deduced so that a wrong argument is explained in one line.
  template <class Group, class Options>
  static std::shared_ptr<DistributedDataParallelImpl<M>> wrap(Handle module, Group&& group,
                                                              const Options& options) {
    constexpr bool kGroup = std::convertible_to<Group, GroupArgument>;
    constexpr bool kOptions = std::same_as<Options, DistributedDataParallelOptions>;
    static_assert(kGroup,
                  "after the module comes the group: the std::shared_ptr<ProcessGroup> "
                  "that init_process_group() returns, or what it points to");
    static_assert(kOptions,
                  "options have names: DistributedDataParallel(net, group, "
                  "{.bucket_cap_mb = 25})");
    if constexpr (kGroup && kOptions) {
      return std::make_shared<DistributedDataParallelImpl<M>>(std::move(module),
                                                              std::forward<Group>(group), options);
    } else {
      return nullptr;
    }
  }
};

template <class M, class Group, class Options = DistributedDataParallelOptions>
DistributedDataParallel(std::shared_ptr<M>, Group&&, const Options& = {})
    -> DistributedDataParallel<M>;
template <ModuleHolder M, class Group, class Options = DistributedDataParallelOptions>
DistributedDataParallel(M, Group&&, const Options& = {}) -> DistributedDataParallel<M>;
template <PlainModule M, class Group, class Options = DistributedDataParallelOptions>
DistributedDataParallel(M&, Group&&, const Options& = {}) -> DistributedDataParallel<M>;
template <class M, class Group, class Options = DistributedDataParallelOptions>
DistributedDataParallel(M*, Group&&, const Options& = {}) -> DistributedDataParallel<M>;
template <class Group, class Options = DistributedDataParallelOptions>
DistributedDataParallel(torch::jit::Module, Group&&, const Options& = {})
    -> DistributedDataParallel<ScriptModule>;
template <ModuleHolder M>
DistributedDataParallel(M) -> DistributedDataParallel<M>;
template <PlainModule M>
DistributedDataParallel(M&) -> DistributedDataParallel<M>;

}  // namespace lockstep
