// SPDX-License-Identifier: BSD-3-Clause
// One forward through replicas: inputs are cut, replicas run at once, outputs are put together.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include "lockstep/parallel/for_each_tensor.h"
#include "lockstep/parallel/replica_node.h"
#include "lockstep/parallel/replica_workers.h"
#include "lockstep/parallel/replicas.h"
#include "lockstep/parallel/scatter.h"

namespace lockstep {

// The tensors inside a value, in one order for all values of the same structure.
using TensorPlaces = c10::SmallVector<at::Tensor*, 4>;

class ReplicaForward {
 public:
  // inputs: all tensors that forward was given, also those inside structures. The replicas outlive
  // this object and have been refreshed.
  ReplicaForward(const Replicas& replicas, std::shared_ptr<ReplicaWorkers> workers,
                 const Scatter& scatter, std::vector<at::Tensor> inputs);

  int parts() const { return scatter_.parts(); }
  torch::nn::Module& module(int replica) const { return replicas_.module(replica); }

  // Runs the function for each part, in the workers. ReplicaFailed if it throws.
  void run(const std::function<void(int replica)>& forward);
  // Within run: puts the replica's parts in the places of the inputs.
  void scatter(int replica, const TensorPlaces& inputs);

  // Puts the replicas' outputs together, in the places of replica 0's. Along the scatter's
  // dimension; tensors without dimensions become a vector with one element a replica, as in
  // PyTorch. UsageError if the replicas' outputs do not fit together.
  void gather(const std::vector<TensorPlaces>& outputs, at::Device device);

 private:
  std::vector<std::optional<c10::Stream>> current_streams() const;
  std::vector<GradientTarget> targets() const;

  const Replicas& replicas_;
  std::shared_ptr<ReplicaWorkers> workers_;
  Scatter scatter_;
  std::vector<at::Tensor> inputs_;
  bool records_;  // whether backward may come
  std::vector<ReplicaGraph> graphs_;
};

}  // namespace lockstep
