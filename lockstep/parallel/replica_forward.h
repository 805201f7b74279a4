// SPDX-License-Identifier: BSD-3-Clause
// What DataParallel's forward does for any module: makes replicas, copies arguments for each,
// splits inputs, runs replicas concurrently, and concatenates outputs.
#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>
#include <torch/nn/module.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/for_each_tensor.h"

namespace lockstep {

using ModuleFactory = std::function<std::shared_ptr<torch::nn::Module>()>;

// The possible sources of another module like a given one.
struct ReplicaSources {
  // The user's function; its modules are checked only for their type, names and shapes.
  ModuleFactory make_replica = {};
  // The default constructor; empty if there is none.
  ModuleFactory by_default = {};
  // Whether constructors give unregistered members the original's values.
  bool trust_constructors = false;
};

// A module with the original's names and shapes of parameters, buffers and submodules; the caller
// sets the values. Made by make_replica if given; else by the original's clone()
// (torch::nn::Cloneable); else, if constructors are trusted, by by_default. A clone or default must
// also have the same types of submodules and print like the original, since printing shows the
// options of layers. For a submodule without clone(), a clone has what constructors make. PyTorch's
// random numbers stay unchanged.
//
// UsageError if no source gives such a module; it says what each lacks.
std::shared_ptr<torch::nn::Module> make_replica(const torch::nn::Module& original,
                                                const ReplicaSources& sources);

// The type of a replica's copy. Tensors are handles: the copies share their memory until they are
// split.
template <class Argument>
struct ReplicatedArgument {
  using Copy = std::decay_t<Argument>;
  static_assert(std::copy_constructible<Copy>,
                "DataParallel gives every replica a copy of each argument, and this one cannot be "
                "copied. Pass a shared_ptr, or make it a member of the module.");

  // Returns the copy with the argument's value category and constness.
  static decltype(auto) pass(Copy& copy) {
    if constexpr (std::is_array_v<std::remove_reference_t<Argument>>) {
      return (copy);  // decayed to a pointer
    } else {
      return static_cast<Argument&&>(copy);
    }
  }
};

// Calls the function with every tensor inside the arguments. Arguments of unknown structure have
// none.
template <class... Copies, class Function>
void for_each_input(std::tuple<Copies...>& arguments, Function&& function) {
  const auto visit = [&]<class Value>(Value& value) {
    if constexpr (TensorStructure<Value>) for_each_tensor(value, function);
  };
  std::apply([&](Copies&... copies) { (visit(copies), ...); }, arguments);
}

// A replica's forward or backward threw. The message names the replica and contains the first line
// of the original exception, which cause() holds: std::rethrow_exception(error.cause()).
class ReplicaFailed : public Error {
 public:
  ReplicaFailed(int replica, std::exception_ptr cause, const std::string& message)
      : Error(message), replica_(replica), cause_(std::move(cause)) {}
  int replica() const { return replica_; }
  const std::exception_ptr& cause() const { return cause_; }

 private:
  int replica_;
  std::exception_ptr cause_;
};

class ReplicaWorkers;
class Replicas;
class Scatter;
struct GradientTarget;
struct ReplicaGraph;

// The tensors inside a value, in the same order for all values of the same structure.
using TensorPointers = c10::SmallVector<at::Tensor*, 4>;

// The tensors in what a module returns for the first samples of a batch.
using OutputsOf =
    std::function<std::vector<at::Tensor>(torch::nn::Module& module, std::int64_t samples)>;

class ReplicaForward {
 public:
  // inputs: all tensors given to forward, also those inside structures. The replicas must outlive
  // this object and have been refreshed.
  ReplicaForward(Replicas& replicas, std::shared_ptr<ReplicaWorkers> workers,
                 const Scatter& scatter, std::vector<at::Tensor> inputs);
  ReplicaForward(ReplicaForward&&) noexcept;
  ~ReplicaForward();

  int parts() const;
  torch::nn::Module& module(int replica) const;

  // Whether check() is due: the replicas are new.
  bool is_unchecked() const;
  // UsageError if a replica's outputs do not fit together, or are not those of `module`
  // (replica_check.h), which is null if that cannot be said.
  void check(torch::nn::Module* module, const OutputsOf& outputs_of);
  // Replaces the inputs by copies of their first samples, for check().
  void first_samples(std::int64_t samples, const TensorPointers& inputs) const;

  // Runs the function for each part, in the workers. ReplicaFailed if it throws.
  void run(const std::function<void(int replica)>& forward);
  // Call it within run: replaces the inputs by the replica's parts.
  void scatter(int replica, const TensorPointers& inputs);

  // Concatenates the replicas' outputs along the scatter's dimension, into the places of replica
  // 0's. Tensors without dimensions become a vector with one element per replica, as in PyTorch.
  // UsageError if the replicas' outputs do not fit together, and once for new replicas if their
  // graphs begin elsewhere than at inputs and parameters.
  void gather(const std::vector<TensorPointers>& outputs, at::Device device);

 private:
  std::vector<std::optional<c10::Stream>> current_streams() const;
  std::vector<GradientTarget> targets() const;

  Replicas& replicas_;
  std::shared_ptr<ReplicaWorkers> workers_;
  std::unique_ptr<const Scatter> scatter_;
  std::vector<at::Tensor> inputs_;
  bool records_;  // whether backward may follow
  std::vector<ReplicaGraph> graphs_;
};

}  // namespace lockstep
