// SPDX-License-Identifier: BSD-3-Clause
// One forward through replicas as one node of the autograd graph. Its edges lead to the inputs and
// to the module's own parameters, so that accumulation, hooks and whatever comes before the model
// work as if there were no replicas; what is inside them is differentiated when backward reaches
// the node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/libtorch_version.h"
#include "lockstep/parallel/replica_workers.h"
#include "lockstep/parallel/scatter.h"

namespace lockstep {

// A place in a replica's graph whose gradient is wanted, and which of the node's edges gets it.
struct ReplicaLeaf {
  torch::autograd::Edge edge;
  std::size_t target;
};

// What a replica's forward left behind. Holding the edges keeps its graph alive.
struct ReplicaGraph {
  at::Device device;
  std::vector<ReplicaLeaf> leaves = {};
  // One for each output with a history; invalid if this replica's part of it has none.
  std::vector<torch::autograd::Edge> roots = {};
};

// Where the node's gradients go: first to the inputs, then to the parameters.
struct GradientTarget {
  torch::autograd::Edge edge;
  at::Device device;
  // Of an input that was cut; its gradient is put together instead of added up.
  std::optional<std::vector<std::int64_t>> cut_sizes = {};
};

// How an output was put together.
struct GatheredOutput {
  std::vector<std::int64_t> lengths;     // of each replica's part, along the scatter's dimension
  bool stacked = false;                  // of tensors without dimensions: one element a replica
  std::vector<at::Device> devices = {};  // of the parts
};

// Gives the outputs, which are gathered already and require no grad, their history. Undefined ones
// are places that need none.
//
// Backward runs the replicas at once and leaves it to autograd to accumulate. It needs the workers,
// but neither the model nor its replicas to be there. UsageError if create_graph is set.
void set_replica_history(std::vector<at::Tensor>& outputs, std::vector<GatheredOutput> gathered,
                         std::vector<ReplicaGraph> graphs, std::vector<GradientTarget> targets,
                         const Scatter& scatter, std::shared_ptr<ReplicaWorkers> workers);

// Makes the input the start of a replica's graph, and returns the place of its gradient. Unlike a
// leaf it may be changed in place.
torch::autograd::Edge start_history(at::Tensor& input);

}  // namespace lockstep
