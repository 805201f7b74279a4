// SPDX-License-Identifier: BSD-3-Clause
// Runs the graphs of the replicas in backward, and sums or concatenates their gradients: sums with
// the kernels of the collectives, split among the workers, or with at::add.
#include "lockstep/parallel/replica_node.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/moved_input.h"
#include "lockstep/tensor/device_copies.h"
#include "lockstep/tensor/kernels/reduce.h"

namespace lockstep {
namespace {

using Terms = std::vector<at::Tensor>;

bool fits_kernel(const Terms& terms) {
  const at::Tensor& first = terms.front();
  return std::all_of(terms.begin(), terms.end(), [&](const at::Tensor& term) {
    return term.layout() == at::kStrided && term.is_cpu() &&
           can_reduce(term.scalar_type(), ReduceOp::sum) &&
           term.scalar_type() == first.scalar_type() && term.sizes() == first.sizes() &&
           !is_lazy(term);
  });
}

at::Tensor sum_in_turn(const Terms& terms) {
  at::Tensor sum = terms.front();
  for (std::size_t i = 1; i < terms.size(); ++i) sum = at::add(sum, terms[i]);
  return sum;
}

// Whether nobody else can see the memory; autograd itself checks the same before it takes over a
// gradient. One tensor may be the gradient of two parameters.
bool is_sole_owner(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

// One sum, whose tensors all have the same memory layout.
struct Sum {
  at::Tensor result;
  Terms terms;

  explicit Sum(Terms&& given) : terms(std::move(given)) {
    at::Tensor& first = terms.front();
    if (!first.is_non_overlapping_and_dense()) first = first.contiguous();
    result = is_sole_owner(first) ? first : at::empty_like(first);
    for (at::Tensor& term : terms) {
      if (term.strides() == first.strides()) continue;
      term = at::empty_strided(first.sizes(), first.strides(), first.options()).copy_(term);
    }
  }

  void add_up(std::int64_t begin, std::int64_t end) const {
    const auto offset = begin * static_cast<std::int64_t>(result.element_size());
    std::vector<const void*> sources;
    for (const at::Tensor& term : terms) {
      sources.push_back(static_cast<const char*>(term.data_ptr()) + offset);
    }
    const std::array<void*, 1> destination{static_cast<char*>(result.data_ptr()) + offset};
    reduce(sources, destination, end - begin, result.scalar_type(), ReduceOp::sum, 1);
  }
};

// Adds the elements from begin to end, counted through all sums one after another.
void add_up(const std::vector<Sum>& sums, std::int64_t begin, std::int64_t end) {
  std::int64_t start = 0;
  for (const Sum& sum : sums) {
    const std::int64_t stop = start + sum.result.numel();
    const std::int64_t from = std::max(begin, start);
    const std::int64_t to = std::min(end, stop);
    if (from < to) sum.add_up(from - start, to - start);
    start = stop;
  }
}

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

class StartOfReplica : public torch::autograd::Node {
 public:
  variable_list apply(variable_list&& /*gradients*/) override { return {}; }
  std::string name() const override { return "LockstepStartOfReplica"; }
};

class ReplicaNode : public torch::autograd::Node {
 public:
  ReplicaNode(std::vector<GatheredOutput> gathered, std::vector<ReplicaGraph> graphs,
              std::vector<GradientTarget> targets, const Scatter& scatter,
              std::shared_ptr<ReplicaWorkers> workers)
      : gathered_(std::move(gathered)),
        graphs_(std::move(graphs)),
        targets_(std::move(targets)),
        scatter_(scatter),
        workers_(std::move(workers)) {
    edge_list edges;
    for (GradientTarget& target : targets_) edges.push_back(std::move(target.edge));
    set_next_edges(std::move(edges));
  }

  std::string name() const override { return "LockstepDataParallel"; }

  variable_list apply(variable_list&& gradients) override;

  void will_release_variables() override { keep_graphs_ = false; }
  void release_variables() override {
    const std::lock_guard lock(one_backward_);
    graphs_.clear();
  }

 private:
  // A replica's part of an output's gradient.
  at::Tensor part(const at::Tensor& gradient, std::size_t output, std::size_t replica) const;
  // The wanted gradients of a replica's leaves, with their targets.
  std::vector<std::pair<std::size_t, at::Tensor>> backward(std::size_t replica,
                                                           const variable_list& gradients,
                                                           const std::vector<bool>& wanted,
                                                           bool keep_graph) const;
  at::Tensor put_together(std::vector<at::Tensor>&& parts,
                          const std::vector<std::int64_t>& sizes) const;
  std::vector<int> replicas_of_this_thread(const variable_list& gradients) const;

  std::vector<GatheredOutput> gathered_;
  std::vector<ReplicaGraph> graphs_;
  std::vector<GradientTarget> targets_;
  Scatter scatter_;
  std::shared_ptr<ReplicaWorkers> workers_;
  bool keep_graphs_ = true;
  std::mutex one_backward_;
};

at::Tensor ReplicaNode::part(const at::Tensor& gradient, std::size_t output,
                             std::size_t replica) const {
  const GatheredOutput& gathered = gathered_[output];
  if (gathered.stacked) return gradient.select(0, static_cast<std::int64_t>(replica));
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < replica; ++i) begin += gathered.lengths[i];
  return gradient.narrow(scatter_.dim(), begin, gathered.lengths[replica]);
}

std::vector<std::pair<std::size_t, at::Tensor>> ReplicaNode::backward(
    std::size_t replica, const variable_list& gradients, const std::vector<bool>& wanted,
    bool keep_graph) const {
  const ReplicaGraph& graph = graphs_[replica];
  const c10::OptionalDeviceGuard current(graph.device);
  edge_list roots;
  variable_list seeds;
  for (std::size_t output = 0; output < gradients.size(); ++output) {
    if (!gradients[output].defined() || !graph.roots[output].is_valid()) continue;
    roots.push_back(graph.roots[output]);
    seeds.push_back(
        to_device(part(gradients[output], output, replica), gathered_[output].devices[replica]));
    workers_->count_moved(seeds.back(), static_cast<int>(replica));
  }
  edge_list leaves;
  std::vector<std::size_t> targets;
  for (const ReplicaLeaf& leaf : graph.leaves) {
    if (!wanted[leaf.target]) continue;
    leaves.push_back(leaf.edge);
    targets.push_back(leaf.target);
  }
  if (roots.empty() || leaves.empty()) return {};
  variable_list found = torch::autograd::Engine::get_default_engine().execute(
      roots, seeds, keep_graph, /*create_graph=*/false, /*accumulate_grad=*/false, leaves);
  std::vector<std::pair<std::size_t, at::Tensor>> result;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i].defined()) result.emplace_back(targets[i], std::move(found[i]));
  }
  return result;
}

// A part without a gradient counts as zero if another part has one.
at::Tensor ReplicaNode::put_together(std::vector<at::Tensor>&& parts,
                                     const std::vector<std::int64_t>& sizes) const {
  const auto any =
      std::find_if(parts.begin(), parts.end(), [](const auto& part) { return part.defined(); });
  if (any == parts.end()) return {};
  const auto options = any->options();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].defined()) continue;
    auto part_sizes = sizes;
    part_sizes[static_cast<std::size_t>(scatter_.dim())] = scatter_.length(static_cast<int>(i));
    parts[i] = at::zeros(part_sizes, options);
  }
  return at::cat(parts, scatter_.dim());
}

// Autograd runs this node on the thread of the gradients' GPU. The replicas on that GPU need the
// same thread, which would otherwise wait here for itself.
std::vector<int> ReplicaNode::replicas_of_this_thread(const variable_list& gradients) const {
  const auto any = std::find_if(gradients.begin(), gradients.end(),
                                [](const at::Tensor& gradient) { return gradient.defined(); });
  if (any == gradients.end() || any->is_cpu()) {
    // The thread that called backward computes no replicas on GPUs: while it waited, it would run
    // other pending work, such as another forward of the same model.
    return graphs_.front().device.is_cpu() ? std::vector{0} : std::vector<int>();
  }
  std::vector<int> replicas;
  for (std::size_t i = 0; i < graphs_.size(); ++i) {
    if (graphs_[i].device == any->device()) replicas.push_back(static_cast<int>(i));
  }
  return replicas;
}

variable_list ReplicaNode::apply(variable_list&& gradients) {
  if (at::GradMode::is_enabled()) {
    throw UsageError({.component = "DataParallel"},
                     "backward with create_graph=true is not supported: gradients of gradients "
                     "cannot pass through the replicas",
                     "compute them on the unwrapped module, model->module()");
  }
  const std::lock_guard lock(one_backward_);
  if (graphs_.empty()) {
    throw Error({.component = "DataParallel"},
                "backward a second time through the same forward, whose graph has been freed",
                "pass retain_graph=true to the first backward, or run forward again");
  }
  const bool keep_graphs = std::exchange(keep_graphs_, true);
  std::vector<bool> wanted(targets_.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = task_should_compute_output(i);

  const int count = static_cast<int>(graphs_.size());
  std::vector<std::vector<std::pair<std::size_t, at::Tensor>>> found(graphs_.size());
  workers_->run(
      "backward", count,
      [&](int replica) {
        const auto i = static_cast<std::size_t>(replica);
        found[i] = backward(i, gradients, wanted, keep_graphs);
        for (auto& [target, gradient] : found[i]) {
          workers_->count_moved(gradient, replica);
          gradient = std::move(gradient).to(targets_[target].device);
        }
      },
      replicas_of_this_thread(gradients));

  variable_list results(targets_.size());
  std::vector<variable_list> terms(targets_.size());
  std::vector<variable_list> parts(targets_.size());
  for (std::size_t replica = 0; replica < found.size(); ++replica) {
    for (auto& [target, gradient] : found[replica]) {
      if (targets_[target].cut_sizes) {
        parts[target].resize(found.size());
        parts[target][replica] = std::move(gradient);
      } else {
        terms[target].push_back(std::move(gradient));
      }
    }
  }
  results = sum_gradients(std::move(terms), *workers_, count);
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    if (targets_[i].cut_sizes) {
      results[i] = put_together(std::move(parts[i]), *targets_[i].cut_sizes);
    }
  }
  return results;
}

}  // namespace

std::vector<at::Tensor> sum_gradients(std::vector<Terms> terms, ReplicaWorkers& workers,
                                      int count) {
  std::vector<at::Tensor> results(terms.size());
  std::vector<Sum> sums;
  std::vector<std::size_t> indices;
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    if (terms[i].empty()) continue;
    if (terms[i].size() == 1) {
      results[i] = std::move(terms[i].front());
    } else if (fits_kernel(terms[i])) {
      sums.emplace_back(std::move(terms[i]));
      indices.push_back(i);
      elements += sums.back().result.numel();
    } else {
      results[i] = sum_in_turn(terms[i]);
    }
  }
  // For fewer elements, waking a thread takes longer than adding its part.
  constexpr std::int64_t kWorthSharing = 32 * 1024;
  if (elements < kWorthSharing) {
    add_up(sums, 0, elements);
  } else {
    workers.run("the gradient sum", count, [&](int part) {
      add_up(sums, elements * part / count, elements * (part + 1) / count);
    });
  }
  for (std::size_t i = 0; i < sums.size(); ++i) results[indices[i]] = std::move(sums[i].result);
  return results;
}

void set_replica_history(std::vector<at::Tensor>& outputs, std::vector<GatheredOutput> gathered,
                         std::vector<ReplicaGraph> graphs, std::vector<GradientTarget> targets,
                         const Scatter& scatter, std::shared_ptr<ReplicaWorkers> workers) {
  const auto node = libtorch::make_node<ReplicaNode>(
      std::move(gathered), std::move(graphs), std::move(targets), scatter, std::move(workers));
  torch::autograd::set_history(outputs, node);
}

torch::autograd::Edge start_history(at::Tensor& input) {
  torch::autograd::set_history(input, libtorch::make_node<StartOfReplica>());
  return torch::autograd::impl::gradient_edge(input);
}

}  // namespace lockstep
