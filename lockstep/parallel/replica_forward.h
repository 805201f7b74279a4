// SPDX-License-Identifier: BSD-3-Clause
// One forward through replicas: splits inputs, runs replicas concurrently, concatenates outputs.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>
#include <torch/nn/module.h>

#include "lockstep/parallel/for_each_tensor.h"
#include "lockstep/parallel/replica_failed.h"

namespace lockstep {

class ReplicaWorkers;
class Replicas;
class Scatter;
struct GradientTarget;
struct ReplicaGraph;

// The tensors inside a value, in the same order for all values of the same structure.
using TensorPointers = c10::SmallVector<at::Tensor*, 4>;

class ReplicaForward {
 public:
  // inputs: all tensors given to forward, also those inside structures. The replicas must outlive
  // this object and have been refreshed.
  ReplicaForward(const Replicas& replicas, std::shared_ptr<ReplicaWorkers> workers,
                 const Scatter& scatter, std::vector<at::Tensor> inputs);
  ReplicaForward(ReplicaForward&&) noexcept;
  ~ReplicaForward();

  int parts() const;
  torch::nn::Module& module(int replica) const;

  // Runs the function for each part, in the workers. ReplicaFailed if it throws.
  void run(const std::function<void(int replica)>& forward);
  // Call it within run: replaces the inputs by the replica's parts.
  void scatter(int replica, const TensorPointers& inputs);

  // Concatenates the replicas' outputs along the scatter's dimension, into the places of replica
  // 0's. Tensors without dimensions become a vector with one element per replica, as in PyTorch.
  // UsageError if the replicas' outputs do not fit together.
  void gather(const std::vector<TensorPointers>& outputs, at::Device device);

 private:
  std::vector<std::optional<c10::Stream>> current_streams() const;
  std::vector<GradientTarget> targets() const;

  const Replicas& replicas_;
  std::shared_ptr<ReplicaWorkers> workers_;
  std::unique_ptr<const Scatter> scatter_;
  std::vector<at::Tensor> inputs_;
  bool records_;  // whether backward may follow
  std::vector<ReplicaGraph> graphs_;
};

}  // namespace lockstep
