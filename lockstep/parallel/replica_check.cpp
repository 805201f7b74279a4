// SPDX-License-Identifier: BSD-3-Clause
// Compares outputs of a replica and its module, and walks through a replica's graph.
#include "lockstep/parallel/replica_check.h"

#include <algorithm>
#include <optional>
#include <unordered_set>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/kept_state.h"
#include "lockstep/parallel/replicas.h"
#include "lockstep/parallel/scatter.h"

namespace lockstep {
namespace {

using at::Tensor;
using torch::nn::Module;
using ReplicaOutputs = std::vector<Tensor>;

// The tensors that a forward may write.
std::vector<Tensor> state_of(const Module& module) {
  std::vector<Tensor> tensors = module.buffers();
  // Such as a codebook or averaged weights. In a replica they share the memory of the module.
  for (const Tensor& parameter : module.parameters()) {
    if (!parameter.requires_grad()) tensors.push_back(parameter);
  }
  return tensors;
}

// Without it, the cache would hold converted weights without a history.
class NoAutocastCache {
 public:
  NoAutocastCache() { at::autocast::set_autocast_cache_enabled(false); }
  NoAutocastCache(const NoAutocastCache&) = delete;
  NoAutocastCache& operator=(const NoAutocastCache&) = delete;
  ~NoAutocastCache() { at::autocast::set_autocast_cache_enabled(before_); }

 private:
  bool before_ = at::autocast::is_autocast_cache_enabled();
};

bool is_comparable(const Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.numel() > 0 &&
         (at::isFloatingType(tensor.scalar_type()) || tensor.is_complex());
}

// Room for sums in another order, not for another function.
double output_tolerance(at::ScalarType type) {
  return type == at::kBFloat16 ? 0.06 : type == at::kHalf ? 0.01 : 1e-4;
}

// How the replica's output differs from the module's; empty if it does not.
std::string output_difference(const Tensor& own, const Tensor& replicas) {
  if (own.defined() != replicas.defined()) return "is defined in only one of them";
  if (!is_comparable(own) || !is_comparable(replicas)) return {};
  if (own.sizes() != replicas.sizes()) {
    return fmt::format("has the shape {} instead of {}", sizes_in_words(replicas),
                       sizes_in_words(own));
  }
  const auto type = own.is_complex() ? at::kComplexDouble : at::kDouble;
  const Tensor one = own.detach().to(type);
  const Tensor other = replicas.detach().to(one.options());
  const double limit = output_tolerance(own.scalar_type());
  const Tensor sizes = one.abs();
  const double largest = sizes.where(sizes.isfinite(), at::zeros_like(sizes)).max().item<double>();
  if (at::allclose(other, one, limit, limit * largest, /*equal_nan=*/true)) return {};
  return fmt::format("differs by up to {:.3g}", (one - other).abs().max().item<double>());
}

std::string output_difference(const ReplicaOutputs& own, const ReplicaOutputs& replicas) {
  if (own.size() != replicas.size()) {
    return fmt::format("it returns {} tensors instead of {}", replicas.size(), own.size());
  }
  for (std::size_t i = 0; i < own.size(); ++i) {
    const std::string found = output_difference(own[i], replicas[i]);
    if (!found.empty()) return fmt::format("output {} {}", i, found);
  }
  return {};
}

// Another dimension that changes with the number of samples, while `dim` does not.
std::optional<std::int64_t> samples_elsewhere(const Tensor& before, const Tensor& after,
                                              std::int64_t dim) {
  if (!before.defined() || !after.defined() || before.dim() != after.dim()) return {};
  if (before.dim() <= dim || before.size(dim) != after.size(dim)) return {};
  for (std::int64_t i = 0; i < before.dim(); ++i) {
    if (before.size(i) != after.size(i)) return i;
  }
  return {};
}

void check_dimensions(const ReplicaOutputs& before, const ReplicaOutputs& after, std::int64_t dim) {
  for (std::size_t i = 0; i < std::min(before.size(), after.size()); ++i) {
    const auto elsewhere = samples_elsewhere(before[i], after[i], dim);
    if (!elsewhere) continue;
    throw UsageError(
        {.component = "DataParallel"},
        fmt::format("output {} has its samples in dimension {} (a part of it is {}), but parts "
                    "are put together along dimension {}",
                    i, *elsewhere, sizes_in_words(before[i]), dim),
        "transpose it in forward (for an RNN's states: state.transpose(0, 1)), or set .dim if all "
        "inputs and outputs have their samples there");
  }
}

}  // namespace

void check_replica(const Replicas& replicas, Module* module, std::int64_t samples, std::int64_t dim,
                   const OutputsOf& outputs_of) {
  const at::NoGradGuard no_grad;
  const NoAutocastCache no_cache;
  const c10::OptionalDeviceGuard current(replicas.device(0));
  const KeptRandomNumbers random({replicas.device(0)});
  const auto outputs = [&](Module& of, std::int64_t of_samples) -> std::optional<ReplicaOutputs> {
    try {
      random.rewind();
      return outputs_of(of, of_samples);
    } catch (...) {
      return {};
    }
  };
  std::optional<ReplicaOutputs> seen;
  {
    const auto replica = replicas.another();
    const KeptTensors state(state_of(*replica));
    seen = outputs(*replica, samples);
    if (!seen) return;
    if (const auto grown = outputs(*replica, samples + 1)) check_dimensions(*seen, *grown, dim);
  }
  if (module == nullptr) return;
  const KeptTensors state(state_of(*module));
  const auto own = outputs(*module, samples);
  if (!own) return;
  const std::string found = output_difference(*own, *seen);
  if (found.empty()) return;
  // The module may have a state, or random numbers of its own.
  const auto again = outputs(*module, samples);
  if (!again || !output_difference(*own, *again).empty()) return;
  throw UsageError(
      {.component = "DataParallel"},
      fmt::format("a replica of {} does not compute what the module computes: for the same input, "
                  "{}. Its clone() calls reset(), which gives members that are not registered "
                  "other values than the module's",
                  module->name(), found),
      "register them (register_buffer, register_parameter), or pass a function that makes the same "
      "module: {.make_replica = [=] { return std::make_shared<NetImpl>(options); }}");
}

void check_leaves(const Replicas& replicas, int replica,
                  const std::vector<torch::autograd::Edge>& roots) {
  using torch::autograd::Node;
  std::unordered_set<const void*> parameters;
  for (const ReplicaTensor& parameter : replicas.parameters(replica)) {
    parameters.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  std::unordered_set<Node*> seen;
  std::vector<Node*> left;
  const auto add = [&](const torch::autograd::Edge& edge) {
    if (edge.is_valid() && seen.insert(edge.function.get()).second) {
      left.push_back(edge.function.get());
    }
  };
  for (const auto& root : roots) add(root);
  while (!left.empty()) {
    Node& node = *left.back();
    left.pop_back();
    if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(&node)) {
      if (parameters.contains(leaf->variable.unsafeGetTensorImpl())) continue;
      throw UsageError(
          {.component = "DataParallel"},
          fmt::format("the outputs of replica {} depend on a tensor of shape {} that requires "
                      "grad, but is neither an input nor a registered parameter of the replica. It "
                      "may have another value than the module's, and its gradient would be lost",
                      replica, sizes_in_words(leaf->variable)),
          "use the registered parameter in forward (linear->weight, not a second handle on it); or "
          "register the tensor; or pass .make_replica, a function that makes a module like yours; "
          "or call requires_grad_(false) on a constant");
    }
    for (const auto& edge : node.next_edges()) add(edge);
  }
}

}  // namespace lockstep
