// SPDX-License-Identifier: BSD-3-Clause
// Holds the copies of a DataParallel's module, and keeps them in step with the module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "lockstep/parallel/replica_factory.h"

namespace lockstep {

// A tensor of a replica, and the index of the module's tensor that it follows.
struct ReplicaTensor {
  at::Tensor tensor;
  std::size_t original;
};

// The module itself is not a replica, so that the gradients of replica 0 are not the module's.
// Replica 0 uses the module's memory, buffers included, so that BatchNorm's statistics stay, as in
// PyTorch. Other replicas on the module's device share its parameters; their buffers, and all
// tensors of replicas on other devices, are copies.
class Replicas {
 public:
  struct Options {
    std::vector<at::Device> devices;  // the first is the module's
    // False: only replica 0 shares memory, as if all other replicas were on other devices.
    bool share_parameters = true;
    ReplicaSources sources = {};
  };

  // The module must outlive this object. UsageError if it cannot be replicated.
  Replicas(const torch::nn::Module& module, Options options);

  // Call it before each forward: gives the replicas the module's current memory, values, buffers,
  // modes (train, eval) and requires_grad. Memory that is no longer shared (to(), set_data() and
  // similar calls replace it) is shared again; a module with other parameters or submodules is
  // replicated again. Sharing costs one comparison per tensor. Copies go to each replica in one
  // transfer per element type. Returns the number of copied bytes.
  std::uint64_t refresh();

  // Another replica on the module's device, up to date, which the caller owns.
  std::shared_ptr<torch::nn::Module> another() const;
  // What replica_check.h has found to be in order since the replicas were made.
  bool outputs_checked() const { return outputs_checked_; }
  bool leaves_checked() const { return leaves_checked_; }
  void set_outputs_checked() { outputs_checked_ = true; }
  void set_leaves_checked() { leaves_checked_ = true; }

  int count() const { return static_cast<int>(replicas_.size()); }
  const std::vector<at::Device>& devices() const { return options_.devices; }
  at::Device device(int replica) const { return at(replica).device; }
  torch::nn::Module& module(int replica) const { return *at(replica).module; }
  // The module's parameters, each once, and a replica's with the same numbers. A replica may have
  // several copies of a shared weight.
  const std::vector<at::Tensor>& originals() const { return parameters_; }
  const std::vector<ReplicaTensor>& parameters(int replica) const { return at(replica).parameters; }

 private:
  // Adjacent tensors of one element type, filled in one transfer.
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
    std::vector<ReplicaTensor> copied_sparse = {};
    std::vector<Flat> flats = {};
  };

  const Replica& at(int replica) const { return replicas_[static_cast<std::size_t>(replica)]; }
  void replicate();
  Replica replicate_on(at::Device device, bool first) const;
  std::uint64_t update(Replica& replica) const;
  void share(const Replica& replica) const;
  std::uint64_t copy(Replica& replica) const;
  void copy_sparse(const Replica& replica) const;
  void lay_out(Replica& replica) const;
  void copy_modes(const Replica& replica) const;

  const torch::nn::Module& module_;
  Options options_;
  std::vector<at::Tensor> listed_;      // parameters and buffers as the module lists them
  std::vector<at::Tensor> parameters_;  // each once
  std::vector<at::Tensor> tensors_;     // the same, and then the buffers
  std::vector<std::shared_ptr<torch::nn::Module>> submodules_;
  std::vector<Replica> replicas_;
  bool outputs_checked_ = false;
  bool leaves_checked_ = false;
};

}  // namespace lockstep
