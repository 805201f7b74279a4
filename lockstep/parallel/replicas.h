// SPDX-License-Identifier: BSD-3-Clause
// The copies of a module that a DataParallel keeps, and how they stay like it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "lockstep/parallel/replica_factory.h"

namespace lockstep {

// A tensor of a replica, and which of the module's it follows.
struct ReplicaTensor {
  at::Tensor tensor;
  std::size_t original;
};

// The module itself is none of the replicas, so that the gradients of replica 0 are not its own.
// Replica 0 lies in its memory, buffers included: what BatchNorm learns there stays, as in PyTorch.
// The other replicas on its device share its parameters; buffers, and all tensors of replicas on
// other devices, are copied.
class Replicas {
 public:
  struct Options {
    std::vector<at::Device> devices;  // the first is the module's
    // False: only replica 0 shares memory, as if every device was another one.
    bool share_parameters = true;
    ReplicaSources sources = {};
  };

  // The module outlives this object. UsageError if it cannot be replicated.
  Replicas(const torch::nn::Module& module, Options options);

  // Before each forward: makes the replicas what the module is now, with its memory, values,
  // buffers, modes (train, eval) and requires_grad. What was shared and is no longer (to(),
  // set_data() and the like replace memory) is shared again; a module that got other parameters or
  // submodules is replicated anew. Sharing costs a comparison a tensor; what is copied goes to each
  // replica in one transfer for each type of element; returns how many bytes those were.
  std::uint64_t refresh();

  int count() const { return static_cast<int>(replicas_.size()); }
  const std::vector<at::Device>& devices() const { return options_.devices; }
  at::Device device(int replica) const { return at(replica).device; }
  torch::nn::Module& module(int replica) const { return *at(replica).module; }
  // The module's parameters, each once, and the replica's by the same numbers. Of shared weights a
  // replica may have several copies.
  const std::vector<at::Tensor>& originals() const { return parameters_; }
  const std::vector<ReplicaTensor>& parameters(int replica) const { return at(replica).parameters; }

 private:
  // Tensors of one type of element that lie one after another, to be filled in one go.
  struct Flat {
    at::Tensor memory;
    std::vector<std::size_t> tensors;  // positions in Replica::copied
  };
  struct Replica {
    std::shared_ptr<torch::nn::Module> module;
    at::Device device;
    std::vector<std::shared_ptr<torch::nn::Module>> submodules = {};
    std::vector<ReplicaTensor> parameters = {};
    // Parameters and buffers, by how they follow the module's.
    std::vector<ReplicaTensor> shared = {};
    std::vector<ReplicaTensor> copied = {};
    std::vector<Flat> flats = {};
  };

  const Replica& at(int replica) const { return replicas_[static_cast<std::size_t>(replica)]; }
  void replicate();
  Replica replicate_on(at::Device device, bool first) const;
  void share(const Replica& replica) const;
  std::uint64_t copy(Replica& replica) const;
  void lay_out(Replica& replica) const;
  void copy_modes(const Replica& replica) const;

  const torch::nn::Module& module_;
  Options options_;
  std::vector<at::Tensor> listed_;      // parameters and buffers as the module lists them
  std::vector<at::Tensor> parameters_;  // each once
  std::vector<at::Tensor> tensors_;     // the same, and then the buffers
  std::vector<std::shared_ptr<torch::nn::Module>> submodules_;
  std::vector<Replica> replicas_;
};

}  // namespace lockstep
