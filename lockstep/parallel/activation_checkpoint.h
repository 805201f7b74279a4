// SPDX-License-Identifier: BSD-3-Clause
// Public. Trades time for memory: a part of a forward keeps its inputs only, and is computed again
// when backward needs what autograd would have saved. Like torch.utils.checkpoint with
// use_reentrant=False.
//
//   at::Tensor forward(at::Tensor x) {
//     for (auto& block : blocks) x = lockstep::checkpoint(block, x);
//     return head(x);
//   }
//
// The graph is the one that the function makes without checkpoint(); only the tensors saved in it
// are dropped. Gradients therefore have the same bits and come in the same order, once for each
// parameter and backward: hooks, DistributedDataParallel, DataParallel, Autocast,
// torch::autograd::grad() and create_graph work as without it.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include "lockstep/parallel/for_each_tensor.h"
#include "lockstep/parallel/parallel_module.h"

namespace lockstep {

namespace detail {

// Runs a function on the inputs that it gets, and drops its result.
using RepeatedForward = std::function<void(const std::vector<at::Tensor>& inputs)>;

// While it lives, autograd saves nothing that this thread computes. Backward repeats the forward.
class CheckpointScope {
 public:
  // The module whose buffers a repetition must leave as they are; may be null.
  CheckpointScope(const std::vector<at::Tensor>& inputs, RepeatedForward repeat,
                  std::shared_ptr<torch::nn::Module> module);
  CheckpointScope(const CheckpointScope&) = delete;
  CheckpointScope& operator=(const CheckpointScope&) = delete;
  ~CheckpointScope();
  // The first forward has returned. UsageError if it has changed an input in place.
  void finish();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Calls a function, a module by its holder or shared_ptr, or a torch::nn::AnyModule.
template <class Function, class... Inputs>
auto call_forward(Function& function, Inputs&&... inputs) {
  using Called = std::remove_const_t<Function>;
  constexpr bool kAnyModule = std::same_as<Called, torch::nn::AnyModule>;
  if constexpr (requires { function->forward(std::forward<Inputs>(inputs)...); }) {
    return function->forward(std::forward<Inputs>(inputs)...);
  } else if constexpr (std::is_const_v<Function> && (kAnyModule || ModuleHolder<Called>)) {
    Called module(function);  // which shares the module
    return call_forward(module, std::forward<Inputs>(inputs)...);
  } else if constexpr (kAnyModule) {
    return function.forward(std::forward<Inputs>(inputs)...);
  } else {
    return function(std::forward<Inputs>(inputs)...);
  }
}

template <class Function>
std::shared_ptr<torch::nn::Module> module_of(const Function& function) {
  if constexpr (requires { std::shared_ptr<torch::nn::Module>(function.ptr()); }) {
    return function.ptr();
  } else if constexpr (std::convertible_to<Function, std::shared_ptr<torch::nn::Module>>) {
    return function;
  } else {
    return nullptr;
  }
}

}  // namespace detail

// Returns function(inputs...), or a module's forward: of a holder, a shared_ptr, an AnyModule (an
// element of a Sequential), or a module by reference, which must outlive backward unless a
// shared_ptr owns it.
//
// What may be passed and returned: any function that can be copied, such as a lambda, which is
// copied before it is called, and any arguments that can be copied. Tensors within the arguments
// (for_each_tensor.h) are the inputs; some, all or none may require grad. Everything else that the
// function uses, it captures. What it points to must outlive backward. The result is of any type
// and stays as the function returned it.
//
// Memory: until backward, the graph holds the inputs, and none of the tensors that autograd saved
// within the function. The first backward through the function repeats it up to the last tensor
// needed, with all that it saves; each is freed once it has been used. Calls may be nested: then
// the inputs of inner calls are not kept either. What the function computes in other threads, as
// the replicas of a DataParallel do, is saved as usual: call checkpoint() in the module instead.
//
// A repetition uses the random numbers, the autocast state and the grad mode of the first forward,
// and leaves the program's random numbers as they are. It happens on the thread that computes the
// gradients: on CPU the one that called backward. If the function is a module, its buffers, such as
// the statistics of a BatchNorm, have the values from before the repetition afterwards. A lambda's
// modules are unknown: pass the module itself if it updates buffers.
//
// The function must compute the same again. It may draw from the default generators of the CPU and
// of the inputs' devices. UsageError if it changes an input in place. Backward throws UsageError if
// - an input was changed in place after the forward,
// - a saved tensor has another shape, type, device or version (number of changes in place) than in
//   the first forward,
// - on CPU, the first values of one that requires grad differ by more than rounding: the function
//   depends on something else, such as a counter, random numbers of its own, or dropout in replicas
//   that draw from one generator at the same time.
// Not noticed is a parameter that autograd does not save, such as the bias of a Linear, if it
// changes between forward and backward so little that the values above do not show it.
//
// Collectives within the function, such as those of SyncBatchNorm, are made once more in backward,
// at the same place on every rank if all ranks use the same parameters. Wrap a model that uses
// checkpoint(), not the other way round.
//
// Without gradients (at::NoGradGuard, InferenceMode) it only calls the function. UsageError in a
// process whose autograd engine belongs to Python. Thread-safe, as far as the function is.
template <class Function, class... Inputs>
auto checkpoint(Function&& function, Inputs&&... inputs) {
  using Kept = std::decay_t<Function>;
  if constexpr (PlainModule<Kept>) {
    return checkpoint(handle_of(function), std::forward<Inputs>(inputs)...);
  } else {
    static_assert(std::copy_constructible<Kept>,
                  "checkpoint() keeps a copy of the function, and this one cannot be copied. "
                  "Capture a shared_ptr.");
    if (!at::GradMode::is_enabled()) {
      return detail::call_forward(function, std::forward<Inputs>(inputs)...);
    }
    std::tuple<typename CopiedArgument<Inputs>::Copy...> copies(inputs...);
    std::vector<at::Tensor> tensors;
    for_each_input(copies, [&](at::Tensor& tensor) {
      tensors.push_back(std::exchange(tensor, at::Tensor()));
    });
    const auto repeat = [kept = Kept(function),
                         copies](const std::vector<at::Tensor>& again) mutable {
      auto arguments = copies;
      auto next = again.begin();
      for_each_input(arguments, [&](at::Tensor& tensor) { tensor = *next++; });
      std::apply(
          [&](auto&... argument) {
            detail::call_forward(kept, CopiedArgument<Inputs>::pass(argument)...);
          },
          arguments);
    };
    detail::CheckpointScope scope(tensors, repeat, detail::module_of(function));
    auto result = detail::call_forward(function, std::forward<Inputs>(inputs)...);
    scope.finish();
    return result;
  }
}

// Like torch.utils.checkpoint.checkpoint_sequential: runs the modules of a Sequential in `segments`
// parts of equal length, with checkpoint() around each but the last, whose tensors backward needs
// at once. The last part also takes what division leaves over. With n modules that save equally
// much, about sqrt(n) segments need the least memory. UsageError unless 1 <= segments <= size.
at::Tensor checkpoint_sequential(torch::nn::Sequential modules, int segments, at::Tensor input);

}  // namespace lockstep
