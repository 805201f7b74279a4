// SPDX-License-Identifier: BSD-3-Clause
// Wraps a module so that backward averages its gradients over the ranks, like
// torch.nn.parallel.DistributedDataParallel.
//
//   lockstep::DistributedDataParallel model(net, group);
//   loss(model(input), target).backward();   // every rank with its own batch
//   optimizer.step();                         // the same step on every rank
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/util/SmallVector.h>

#include "lockstep/comm/group_argument.h"
#include "lockstep/parallel/distributed_data_parallel_options.h"
#include "lockstep/parallel/for_each_tensor.h"
#include "lockstep/parallel/moved_input.h"
#include "lockstep/parallel/reducer.h"
#include "lockstep/parallel/wrapped_module.h"

namespace lockstep {

// The part that does not depend on the module's type. Reducer's rules for backward apply.
class DistributedDataParallelBase : public torch::nn::Module {
 public:
  DistributedDataParallelBase(const DistributedDataParallelBase&) = delete;
  DistributedDataParallelBase& operator=(const DistributedDataParallelBase&) = delete;

  // While the guard lives, forwards are not synchronized: gradients accumulate on this rank, and
  // the next synchronized backward reduces the sum. Buffers are not broadcast.
  NoSync no_sync() const { return reducer_.no_sync(); }
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  // Names of the parameters that no rank used between the last two reductions.
  std::vector<std::string> unused_parameters() const { return reducer_.unused_parameters(); }
  // Replaces the reduction of a bucket; see Reducer.
  void register_comm_hook(CommHook hook) { reducer_.register_comm_hook(std::move(hook)); }

  void pretty_print(std::ostream& stream) const override;

 protected:
  DistributedDataParallelBase(std::shared_ptr<torch::nn::Module> module,
                              std::shared_ptr<ProcessGroup> group,
                              const DistributedDataParallelOptions& options);

  std::uint64_t before_forward();
  void after_forward(c10::ArrayRef<at::Tensor*> outputs, std::uint64_t before_forward);
  const std::optional<at::Device>& input_device() const { return input_device_; }

 private:
  std::shared_ptr<ProcessGroup> group_;
  torch::nn::Module* inner_;
  DistributedDataParallelOptions options_;
  std::optional<at::Device> input_device_;
  std::vector<at::Tensor> buffers_;  // empty if they are not broadcast
  Reducer reducer_;
};

// M is a holder (Net of TORCH_MODULE(Net), torch::nn::Sequential, ...) or a struct derived from
// torch::nn::Module. It is deduced from a holder, a shared_ptr or a module by reference, which must
// outlive the wrapper. For a torch::jit::Module it is ScriptModule. The wrapper is itself a module,
// with the wrapped one registered as "module": parameters(), train(), to() and so on reach the
// wrapped module. Convert the module before wrapping it.
template <class M>
class DistributedDataParallel : public DistributedDataParallelBase {
 public:
  using Handle = typename WrappedModule<M>::Handle;

  // Collective: afterwards parameters and buffers are rank 0's on every rank. Optimizers may be
  // made before or after. UsageError on every rank if the modules differ, and for options that
  // contradict the module. The group is passed as `group` or `*group`.
  DistributedDataParallel(Handle module, GroupArgument group,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallelBase(pointer_of(module), group.shared(), options),
        module_(std::move(module)) {}
  DistributedDataParallel(
      M& module, GroupArgument group,
      const DistributedDataParallelOptions& options = {}) requires(!ModuleHolder<M>)
      : DistributedDataParallel(handle_of(module), group.shared(), options) {}
  DistributedDataParallel(torch::jit::Module module, GroupArgument group,
                          const DistributedDataParallelOptions& options = {}) requires
      TorchScript<M>
      : DistributedDataParallel(handle_of(std::move(module)), group.shared(), options) {}

  // Takes the arguments of the module's forward and returns its result; for_each_tensor.h lists the
  // structures in which tensors are found. Backward through any of them, or through the node that
  // computed it, is synchronized. Moves tensors as device_ids and output_device require. UsageError
  // if a parameter was converted or moved since wrapping.
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
  template <class... Arguments>
  auto operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }
  // For a TorchScript module: model.forward({input}).
  torch::jit::IValue forward(std::vector<torch::jit::IValue> inputs) requires TorchScript<M> {
    return forward<std::vector<torch::jit::IValue>>(std::move(inputs));
  }

  // The wrapper itself, so that model->train() works as with a holder; module() returns the wrapped
  // module.
  DistributedDataParallel* operator->() { return this; }
  const DistributedDataParallel* operator->() const { return this; }

  // The wrapped module, as a holder or shared_ptr. Its own forward is not synchronized.
  const Handle& module() const { return module_; }
  Handle& module() { return module_; }

 private:
  template <class Output>
  Output finish_forward(Output output, std::uint64_t begin) {
    c10::SmallVector<at::Tensor*, 8> tensors;
    for_each_tensor(output, [&](at::Tensor& tensor) { tensors.push_back(&tensor); });
    after_forward(tensors, begin);
    return output;
  }

  Handle module_;
};

template <class M>
DistributedDataParallel(std::shared_ptr<M>, GroupArgument,
                        const DistributedDataParallelOptions& = {}) -> DistributedDataParallel<M>;
template <ModuleHolder M>
DistributedDataParallel(M, GroupArgument, const DistributedDataParallelOptions& = {})
    -> DistributedDataParallel<M>;
template <PlainModule M>
DistributedDataParallel(M&, GroupArgument, const DistributedDataParallelOptions& = {})
    -> DistributedDataParallel<M>;

DistributedDataParallel(torch::jit::Module, GroupArgument,
                        const DistributedDataParallelOptions& = {})
    ->DistributedDataParallel<ScriptModule>;

}  // namespace lockstep
