// SPDX-License-Identifier: BSD-3-Clause
// Public. One forward of a DataParallel, for any module: splits inputs, runs replicas concurrently,
// and concatenates outputs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>
#include <torch/nn/module.h>

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
  ReplicaForward(Replicas& replicas, std::shared_ptr<ReplicaWorkers> workers,
                 const Scatter& scatter, std::vector<at::Tensor> inputs);
  ReplicaForward(ReplicaForward&&) noexcept;
  ~ReplicaForward();

  int parts() const;
  torch::nn::Module& module(int replica) const;

  // Whether check() is due: the replicas are new.
  bool is_unchecked() const;
  // UsageError if the outputs of a replica do not fit together, or differ from the outputs of
  // `module` (replica_check.h), which is null if they are not to be compared. `outputs_of` returns
  // the tensors in what a module returns for the first `samples` samples of the batch.
  void check(torch::nn::Module* module,
             const std::function<std::vector<at::Tensor>(torch::nn::Module& module,
                                                         std::int64_t samples)>& outputs_of);
  // Replaces the inputs by copies of their first samples, for check().
  void first_samples(std::int64_t samples, const TensorPointers& inputs) const;

  // Runs the function for each part, in the workers. ReplicaFailed if it throws.
  void run(const std::function<void(int replica)>& forward);
  // Call it within run: replaces the inputs by the replica's parts.
  void scatter(int replica, const TensorPointers& inputs);

  // Concatenates the outputs of the replicas along the dimension of the scatter, in place of the
  // outputs of replica 0. Tensors without dimensions become a vector with one element per replica,
  // as in PyTorch. UsageError if the replicas' outputs do not fit together, and once for new
  // replicas if their graphs begin elsewhere than at inputs and parameters.
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
