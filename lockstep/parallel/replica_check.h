// SPDX-License-Identifier: BSD-3-Clause
// Finds replicas that compute another function than their module: once, at the first forward with
// new replicas.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/nn/module.h>

namespace lockstep {

class Replicas;

// Returns the tensors in what the module returns for the first `samples` samples of a batch.
using OutputsOf =
    std::function<std::vector<at::Tensor>(torch::nn::Module& module, std::int64_t samples)>;

// Runs another replica, which is dropped afterwards, on replica 0's samples, and again with one
// sample more. UsageError if
// - an output's samples are not in the dimension along which parts are put together;
// - `module` is given and its outputs for replica 0's samples differ from the replica's. Both
//   get the same random numbers. Outputs without floating-point numbers are not compared, nor the
//   outputs of a module that computes others when it is called again.
//
// Exceptions of a forward are left to the real one. Random numbers, the buffers of `module` and its
// parameters without a gradient, grad mode and autocast's cache are afterwards as before.
void check_replica(const Replicas& replicas, torch::nn::Module* module, std::int64_t samples,
                   std::int64_t dim, const OutputsOf& outputs_of);

// UsageError if the graph that leads to a replica's outputs begins at a tensor that is neither an
// input's part nor one of the replica's parameters: its gradient is lost.
void check_leaves(const Replicas& replicas, int replica,
                  const std::vector<torch::autograd::Edge>& roots);

}  // namespace lockstep
