// SPDX-License-Identifier: BSD-3-Clause
// Public. Wraps a module so that each batch is split among copies of it in this process, on several
// GPUs or several cores, like torch.nn.DataParallel.
//
//   auto model = lockstep::DataParallel(net, {.replicas = 4});
//   loss(model(input), target).backward();   // net gets the gradients of the whole batch
//   optimizer.step();                         // an ordinary optimizer of net->parameters()
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <torch/nn/cloneable.h>

#include "lockstep/parallel/errors.h"
#include "lockstep/parallel/for_each_tensor.h"
#include "lockstep/parallel/moved_input.h"
#include "lockstep/parallel/parallel_module.h"
#include "lockstep/parallel/replica_factory.h"
#include "lockstep/parallel/replica_forward.h"

namespace lockstep {

struct DataParallelOptions {
  // GPUs, one per replica: {0, 1, 2}. The module must be on the first when forward is called. If
  // empty, a module on a GPU is replicated on all visible GPUs. A GPU that is listed twice has two
  // replicas, which share its memory and take turns in backward.
  DeviceIds device_ids = {};
  // For a module on CPU, instead of device_ids: the number of replicas. 0 means one per core that
  // this process may use.
  int replicas = 0;
  // The device where outputs are gathered; by default the module's.
  std::optional<at::Device> output_device = {};
  // The dimension along which inputs are split and outputs concatenated.
  std::int64_t dim = 0;
  // Makes another module like the wrapped one, for modules without their own clone(): [=] { return
  // std::make_shared<NetImpl>(width); }. The wrapper copies the values.
  ModuleFactory make_replica = {};
  // Lets constructors make the copies of modules without a clone(): the default constructor, or the
  // reset() of the enclosing module. Set it only if constructors give unregistered members, such as
  // a factor in forward, the values that they have in the wrapped module.
  bool trust_constructors = false;
  // Replicas on the module's device use the memory of its parameters. If false, parameters are
  // copied before each forward, as to other devices.
  bool share_parameters = true;
};

// The part that does not depend on the module's type, for functions that take any model; a
// DataParallel<M> can be passed as it is.
class DataParallelBase : public ParallelModule {
 public:
  // Joins the workers. A later backward runs the replicas one after another.
  ~DataParallelBase() override;

  void pretty_print(std::ostream& stream) const override;

  // Bytes moved between the first replica and the others: parts of inputs and outputs and their
  // gradients, copied parameters and buffers, and the parameters' gradients. Grows with the number
  // of replicas. Thread-safe.
  std::uint64_t bytes_moved() const;

  // Internal: what a Trainer with .microbatches uses. The replicas, up to date, each of which
  // computes whole microbatches instead of a part of each batch. They stay valid until the next
  // forward of the wrapper or call of this function. UsageError if they are on several devices, or
  // have copies of a parameter that the module uses under several names.
  struct WholeReplica {
    torch::nn::Module* module;
    std::vector<at::Tensor> parameters;  // in the order of the module's distinct_parameters()
  };
  std::vector<WholeReplica> whole_replicas();
  // Runs the job once for each replica, concurrently. ReplicaFailed if one throws.
  void run_on_replicas(const char* what, const std::function<void(int replica)>& job);

 protected:
  DataParallelBase(std::shared_ptr<torch::nn::Module> module, DataParallelOptions options,
                   ModuleFactory by_default);

  // The forward of this batch; nullopt if there is only one part, which the module itself computes.
  std::optional<ReplicaForward> begin(std::vector<at::Tensor> inputs);
  // The device for inputs of the module itself; nullopt if they stay where they are.
  std::optional<at::Device> input_device() const;
  at::Device output_device() const { return options_.output_device.value_or(module_device_); }
  // Whether the user's own function makes the replicas.
  bool has_factory() const { return static_cast<bool>(options_.make_replica); }
  bool moves_output() const { return options_.output_device.has_value(); }

 private:
  std::vector<at::Device> devices() const;
  Replicas& fresh_replicas(const std::vector<at::Device>& on);

  DataParallelOptions options_;
  std::vector<at::Device> device_ids_;  // with indices
  ModuleFactory by_default_;
  at::Device module_device_ = at::kCPU;  // in the current forward
  std::unique_ptr<Replicas> replicas_;
  std::shared_ptr<ReplicaWorkers> workers_;
};

// The module that a DataParallel<M> holds.
//
// The first forward that needs replicas and their threads makes them, and they are kept. Each
// forward gives a replica the module's current parameters, buffers, modes and requires_grad.
// Unregistered members keep the values from clone(), make_replica or trusted constructors; wrap the
// module again after changing one.
//
// The first forward with new replicas (another one if the module's submodules or tensors are
// replaced) also checks them, with two forwards of a replica and one of the module, without
// gradients, on replica 0's samples. It refuses a Cloneable module whose clone() computes something
// else, since reset() gave an unregistered member another value; outputs whose samples are not in
// dimension dim; and a graph that begins at a tensor that is neither an input nor a registered
// parameter, whose gradient would be lost. Random numbers of PyTorch's default generators, the
// module's buffers and, except in submodules, its plain members do not change. docs/modes.md lists
// what this cannot find.
//
// As in PyTorch, each replica's BatchNorm sees its part of the batch, and only replica 0's buffer
// updates persist. Replicas on CPU share PyTorch's random numbers, so Dropout's draws depend on
// timing.
//
// Used from one thread at a time, like any module.
template <class M>
class DataParallelImpl final : public DataParallelBase {
 public:
  using Handle = typename WrappedModule<M>::Handle;
  using Impl = std::remove_reference_t<decltype(*std::declval<Handle&>())>;

  DataParallelImpl(Handle module, DataParallelOptions options)
      : DataParallelBase(pointer_of(module), std::move(options), by_default(module)),
        module_(std::move(module)) {}

  // Takes the arguments of the module's forward and returns its result. Tensors among the
  // arguments, also inside structures (for_each_tensor.h), are split along dim, if they have that
  // dimension, into parts that differ by at most one sample; a batch with fewer samples than
  // replicas uses fewer replicas. All other arguments are copied for each replica. Tensors in the
  // results are concatenated along dim; tensors without dimensions become a vector with one element
  // per replica; everything else comes from replica 0. A single replica or a single sample goes
  // straight through the module.
  //
  // Blocks until all replicas have ended; so does backward. ReplicaFailed (errors.h) if
  // one threw, in forward or in backward; the model can be used again. UsageError if the module
  // cannot be replicated, if inputs differ in their number of samples, if outputs do not fit
  // together, and in backward for create_graph.
  template <class... Arguments>
  auto forward(Arguments&&... arguments) {
    using Output = std::decay_t<decltype(module_->forward(std::forward<Arguments>(arguments)...))>;
    std::tuple<typename CopiedArgument<Arguments>::Copy...> whole(arguments...);
    std::vector<at::Tensor> tensors;
    for_each_input(whole, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
    auto replicas = begin(std::move(tensors));
    if (!replicas) return pass_through<Output>(std::forward<Arguments>(arguments)...);

    const auto pointers_to = [](auto& input) {
      TensorPointers pointers;
      for_each_input(input, [&](at::Tensor& tensor) { pointers.push_back(&tensor); });
      return pointers;
    };
    const auto output_of = [](torch::nn::Module& module, auto& input) -> Output {
      auto& impl = dynamic_cast<Impl&>(module);
      return std::apply(
          [&](auto&... copies) -> decltype(auto) {
            return impl.forward(CopiedArgument<Arguments>::pass(copies)...);
          },
          input);
    };
    if (!TorchScript<M> && replicas->is_unchecked()) {
      const auto module = comparable();
      replicas->check(module.get(), [&](torch::nn::Module& of, std::int64_t samples) {
        auto input = whole;
        replicas->first_samples(samples, pointers_to(input));
        Output output = output_of(of, input);
        std::vector<at::Tensor> found;
        for_each_tensor(output, [&](at::Tensor& tensor) { found.push_back(tensor); });
        return found;
      });
    }

    std::vector<decltype(whole)> inputs(static_cast<std::size_t>(replicas->parts()), whole);
    std::vector<std::optional<Output>> outputs(inputs.size());
    replicas->run([&](int replica) {
      auto& input = inputs[static_cast<std::size_t>(replica)];
      replicas->scatter(replica, pointers_to(input));
      outputs[static_cast<std::size_t>(replica)].emplace(
          output_of(replicas->module(replica), input));
    });
    std::vector<TensorPointers> pointers(outputs.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      for_each_tensor(*outputs[i], [&](at::Tensor& tensor) { pointers[i].push_back(&tensor); });
    }
    replicas->gather(pointers, output_device());
    return Output(std::move(*outputs.front()));
  }
  // For a TorchScript module: model->forward({input}).
  torch::jit::IValue forward(std::vector<torch::jit::IValue> inputs) requires TorchScript<M> {
    return forward<std::vector<torch::jit::IValue>>(std::move(inputs));
  }

  // The wrapped module, as a holder or shared_ptr: for saving, for its optimizer, for one sample.
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

  static ModuleFactory by_default(const Handle& module) {
    const std::shared_ptr<torch::nn::Module> pointer = pointer_of(module);
    return pointer ? default_factory<Impl>(*pointer) : ModuleFactory();
  }

  // A copy of the module that shares its tensors and submodules, so that a forward does not change
  // the module's plain members. Null if what replicas compute is not to be compared.
  std::shared_ptr<torch::nn::Module> comparable() {
    if constexpr (std::derived_from<Impl, torch::nn::Cloneable<Impl>>) {
      const Impl& module = *module_;
      if (!has_factory() && typeid(module) == typeid(Impl)) return std::make_shared<Impl>(module);
    }
    return nullptr;
  }

  template <class Output, class... Arguments>
  Output pass_through(Arguments&&... arguments) {
    const auto finished = [&](Output output) {
      if (!moves_output()) return output;
      for_each_tensor(output, [&](at::Tensor& tensor) {
        if (tensor.defined()) tensor = to_device(tensor, output_device());
      });
      return output;
    };
    if (const auto device = input_device()) {
      return finished(module_->forward(
          MovedInput<Arguments>(std::forward<Arguments>(arguments), *device).get()...));
    }
    return finished(module_->forward(std::forward<Arguments>(arguments)...));
  }

  Handle module_;
};

// A holder, as TORCH_MODULE makes them: copies share the model, nullptr is empty, and `->` reaches
// the wrapper, which is itself a module. model(inputs...) is model->forward(inputs...).
//
// M is a holder (Net of TORCH_MODULE(Net), torch::nn::Sequential, ...) or a struct derived from
// torch::nn::Module. It is deduced from a holder, a shared_ptr, or a module by reference or
// pointer, which must outlive the wrapper unless a shared_ptr owns it. For a torch::jit::Module it
// is ScriptModule. The module may be moved and converted before or after wrapping.
template <class M>
class DataParallel : public WrapperHolder<DataParallelImpl<M>> {
  using Holder = WrapperHolder<DataParallelImpl<M>>;

 public:
  using Handle = typename WrappedModule<M>::Handle;

  DataParallel(std::nullptr_t = nullptr) : Holder(nullptr) {}
  // What register_module returns.
  DataParallel(std::shared_ptr<DataParallelImpl<M>> model) : Holder(std::move(model)) {}
  // UsageError for contradictory options.
  template <class Options = DataParallelOptions>
  explicit DataParallel(Handle module, Options options = {})
      : Holder(wrap(std::move(module), std::move(options))) {}
  template <class Options = DataParallelOptions>
  explicit DataParallel(M& module, Options options = {}) requires PlainModule<M>
      : Holder(wrap(handle_of(module), std::move(options))) {}
  template <class Options = DataParallelOptions>
  explicit DataParallel(M* module, Options options = {}) requires PlainModule<M>
      : Holder(wrap(handle_of(module), std::move(options))) {}
  template <class Options = DataParallelOptions>
  explicit DataParallel(torch::jit::Module module, Options options = {}) requires TorchScript<M>
      : Holder(wrap(handle_of(std::move(module)), std::move(options))) {}

  template <class... Arguments>
  auto operator()(Arguments&&... arguments) const {
    return this->ptr()->forward(std::forward<Arguments>(arguments)...);
  }
  operator DataParallelBase&() const { return *this->ptr(); }

 private:
  // Options are deduced so that other arguments are explained in one line.
  template <class Options>
  static std::shared_ptr<DataParallelImpl<M>> wrap(Handle module, Options options) {
    constexpr bool kOptions = std::same_as<Options, DataParallelOptions>;
    static_assert(kOptions,
                  "options have names: DataParallel(net, {.replicas = 4}) splits batches among 4 "
                  "replicas on CPU, DataParallel(net, {.device_ids = {0, 1}}) between two GPUs");
    if constexpr (kOptions) {
      return std::make_shared<DataParallelImpl<M>>(std::move(module), std::move(options));
    } else {
      return nullptr;
    }
  }
};

template <class M, class Options = DataParallelOptions>
DataParallel(std::shared_ptr<M>, Options = {}) -> DataParallel<M>;
template <ModuleHolder M, class Options = DataParallelOptions>
DataParallel(M, Options = {}) -> DataParallel<M>;
template <PlainModule M, class Options = DataParallelOptions>
DataParallel(M&, Options = {}) -> DataParallel<M>;
template <class M, class Options = DataParallelOptions>
DataParallel(M*, Options = {}) -> DataParallel<M>;
template <class Options = DataParallelOptions>
DataParallel(torch::jit::Module, Options = {}) -> DataParallel<ScriptModule>;

}  // namespace lockstep
