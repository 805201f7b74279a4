// SPDX-License-Identifier: BSD-3-Clause
// One forward through replicas as a single node of the autograd graph, and the sum of gradients in
// its backward. Its edges lead to the inputs and to the parameters of the module itself, so that
// accumulation, hooks and the graph before the model work as without replicas. The graphs of the
// replicas are differentiated when backward reaches the node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/libtorch_compat.h"
#include "lockstep/parallel/replica_workers.h"
#include "lockstep/parallel/scatter.h"

namespace lockstep {

// A point in a replica's graph whose gradient is wanted, and the node's edge that gets it.
struct ReplicaLeaf {
  torch::autograd::Edge edge;
  std::size_t target;
};

// The graph that a replica's forward leaves behind. Holding its edges keeps it alive.
struct ReplicaGraph {
  at::Device device;
  std::vector<ReplicaLeaf> leaves = {};
  // One per output with a history; invalid if this replica's part has none.
  std::vector<torch::autograd::Edge> roots = {};
};

// The destinations of the node's gradients: first the inputs, then the parameters.
struct GradientTarget {
  torch::autograd::Edge edge;
  at::Device device;
  // The sizes of an input that was split; its gradient is concatenated instead of summed.
  std::optional<std::vector<std::int64_t>> cut_sizes = {};
};

// How an output was gathered.
struct GatheredOutput {
  std::vector<std::int64_t> lengths;     // of each replica's part, along the scatter's dimension
  bool stacked = false;                  // of tensors without dimensions, one element per replica
  std::vector<at::Device> devices = {};  // of the parts
};

// Gives the outputs their history; they are gathered already and require no grad. Undefined outputs
// need no history.
//
// Backward runs the replicas concurrently and leaves accumulation to autograd. It needs the
// workers, but neither the model nor its replicas. UsageError if create_graph is set.
void set_replica_history(std::vector<at::Tensor>& outputs, std::vector<GatheredOutput> gathered,
                         std::vector<ReplicaGraph> graphs, std::vector<GradientTarget> targets,
                         const Scatter& scatter, std::shared_ptr<ReplicaWorkers> workers);

// Makes the input the start of a replica's graph, and returns the edge of its gradient. Unlike a
// leaf, it may be changed in place.
torch::autograd::Edge start_history(at::Tensor& input);

// Returns for each element of `terms` the sum of its tensors, added from left to right, so that the
// bits do not depend on the replicas' timing; undefined if it has none. The terms of one sum have
// the same sizes and device. Dense terms on CPU are added by the collectives' kernels, a part of
// the elements per worker; sparse and lazy terms (is_lazy) and terms on a GPU by at::add.
//
// Consumes the tensors: a sum may reuse the memory of its first term.
std::vector<at::Tensor> sum_gradients(std::vector<std::vector<at::Tensor>> terms,
                                      ReplicaWorkers& workers, int count);

}  // namespace lockstep
