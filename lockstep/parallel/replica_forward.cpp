// SPDX-License-Identifier: BSD-3-Clause
// Splits inputs, runs the replicas on their streams, and gathers outputs with their history.
#include "lockstep/parallel/replica_forward.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/moved_input.h"
#include "lockstep/parallel/replica_check.h"
#include "lockstep/parallel/replica_node.h"
#include "lockstep/parallel/replica_workers.h"
#include "lockstep/parallel/replicas.h"
#include "lockstep/parallel/scatter.h"

namespace lockstep {
namespace {

// One output, as computed by the replicas.
using Parts = std::vector<at::Tensor>;

template <class Property>
bool all(const Parts& parts, Property property) {
  return std::all_of(parts.begin(), parts.end(), property);
}

// Parts may differ only along the dimension in which they are put together.
void require_fit(const at::Tensor& first, const at::Tensor& part, std::int64_t dim,
                 std::size_t number) {
  bool fits = part.dim() == first.dim();
  for (std::int64_t i = 0; fits && i < part.dim(); ++i) {
    fits = i == dim || part.size(i) == first.size(i);
  }
  if (fits) return;
  throw UsageError(
      {.component = "DataParallel"},
      fmt::format("output {} is {} in replica 0 and {} in another one, so that the parts cannot be "
                  "put together along dimension {}",
                  number, sizes_in_words(first), sizes_in_words(part), dim),
      "return tensors with their samples in that dimension (for an RNN's states: "
      "state.transpose(0, 1)), or set .dim");
}

at::Tensor gather_one(const Parts& parts, std::int64_t dim, at::Device device, std::size_t number,
                      GatheredOutput& gathered) {
  Parts values;
  for (const at::Tensor& part : parts) {
    gathered.devices.push_back(part.device());
    values.push_back(to_device(part.detach(), device));
  }
  gathered.stacked = all(parts, [](const at::Tensor& part) { return part.dim() == 0; });
  if (gathered.stacked) return at::stack(values);
  for (const at::Tensor& part : parts) {
    if (part.dim() <= dim) {
      throw UsageError(
          {.component = "DataParallel"},
          fmt::format("output {} has {} dimensions, so that there is no dimension {} along which "
                      "the replicas' parts could be put together",
                      number, part.dim(), dim),
          "return tensors with their samples in that dimension, or set .dim");
    }
    gathered.lengths.push_back(part.size(dim));
    require_fit(parts.front(), part, dim, number);
  }
  return at::cat(values, dim);
}

}  // namespace

ReplicaForward::ReplicaForward(Replicas& replicas, std::shared_ptr<ReplicaWorkers> workers,
                               const Scatter& scatter, std::vector<at::Tensor> inputs)
    : replicas_(replicas),
      workers_(std::move(workers)),
      scatter_(std::make_unique<Scatter>(scatter)),
      inputs_(std::move(inputs)),
      records_(at::GradMode::is_enabled()) {
  for (int replica = 0; replica < parts(); ++replica) {
    graphs_.push_back({.device = replicas_.device(replica)});
  }
}

ReplicaForward::ReplicaForward(ReplicaForward&&) noexcept = default;
ReplicaForward::~ReplicaForward() = default;

int ReplicaForward::parts() const {
  return scatter_->parts();
}

torch::nn::Module& ReplicaForward::module(int replica) const {
  return replicas_.module(replica);
}

bool ReplicaForward::is_unchecked() const {
  return !replicas_.outputs_checked();
}

void ReplicaForward::check(torch::nn::Module* module, const OutputsOf& outputs_of) {
  check_replica(replicas_, module, scatter_->length(0), scatter_->dim(), outputs_of);
  replicas_.set_outputs_checked();
}

void ReplicaForward::first_samples(std::int64_t samples, const TensorPointers& inputs) const {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    *inputs[i] = scatter_->copy(inputs_[i], 0, samples, replicas_.device(0));
  }
}

void ReplicaForward::run(const std::function<void(int replica)>& forward) {
  const std::vector<std::optional<c10::Stream>> streams = current_streams();
  workers_->run("forward", parts(), [&](int replica) {
    const c10::OptionalDeviceGuard current(replicas_.device(replica));
    c10::OptionalStreamGuard on_stream;
    if (const auto& stream = streams[static_cast<std::size_t>(replica)]) {
      on_stream.reset_stream(*stream);
    }
    ReplicaGraph& graph = graphs_[static_cast<std::size_t>(replica)];
    forward(replica);
    if (!records_) return;
    for (const ReplicaTensor& parameter : replicas_.parameters(replica)) {
      // A parameter without an accumulator is unused: then hooks on it must not be called.
      if (!parameter.tensor.requires_grad() ||
          !torch::autograd::impl::try_get_grad_accumulator(parameter.tensor)) {
        continue;
      }
      graph.leaves.push_back({torch::autograd::impl::gradient_edge(parameter.tensor),
                              inputs_.size() + parameter.original});
    }
  });
}

void ReplicaForward::scatter(int replica, const TensorPointers& inputs) {
  ReplicaGraph& graph = graphs_[static_cast<std::size_t>(replica)];
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    at::Tensor part = scatter_->part(inputs_[i], replica, replicas_.device(replica));
    workers_->count_moved(part, replica);
    if (records_ && inputs_[i].defined() && inputs_[i].requires_grad()) {
      graph.leaves.push_back({start_history(part), i});
    }
    *inputs[i] = std::move(part);
  }
}

// The caller's streams on the replicas' devices; threads start with the default streams.
std::vector<std::optional<c10::Stream>> ReplicaForward::current_streams() const {
  std::vector<std::optional<c10::Stream>> streams(static_cast<std::size_t>(parts()));
  for (int replica = 0; replica < parts(); ++replica) {
    const at::Device device = replicas_.device(replica);
    if (device.is_cpu()) continue;
    streams[static_cast<std::size_t>(replica)] =
        c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  }
  return streams;
}

// One per input and parameter; the edge is invalid if it gets no gradient.
std::vector<GradientTarget> ReplicaForward::targets() const {
  std::vector<GradientTarget> result;
  const auto edge_of = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad() ? torch::autograd::impl::gradient_edge(tensor)
                                                      : torch::autograd::Edge();
  };
  for (const at::Tensor& input : inputs_) {
    GradientTarget target{edge_of(input), input.defined() ? input.device() : at::kCPU};
    if (target.edge.is_valid() && scatter_->cuts(input)) target.cut_sizes = input.sizes().vec();
    result.push_back(std::move(target));
  }
  std::vector<bool> used(inputs_.size() + replicas_.originals().size());
  for (const ReplicaGraph& graph : graphs_) {
    for (const ReplicaLeaf& leaf : graph.leaves) used[leaf.target] = true;
  }
  for (const at::Tensor& parameter : replicas_.originals()) {
    const bool gets_gradient = used[result.size()];
    result.push_back(
        {gets_gradient ? edge_of(parameter) : torch::autograd::Edge(), parameter.device()});
  }
  return result;
}

void ReplicaForward::gather(const std::vector<TensorPointers>& outputs, at::Device device) {
  const TensorPointers& pointers = outputs.front();
  std::vector<at::Tensor> with_history;
  std::vector<GatheredOutput> how;
  for (std::size_t number = 0; number < pointers.size(); ++number) {
    Parts parts;
    for (const TensorPointers& replica : outputs) {
      if (replica.size() != pointers.size()) {
        throw UsageError({.component = "DataParallel"},
                         fmt::format("replica 0 returned {} tensors and another one {}",
                                     pointers.size(), replica.size()),
                         "return the same number for every part of a batch");
      }
      workers_->count_moved(*replica[number], static_cast<int>(parts.size()));
      parts.push_back(*replica[number]);
    }
    const auto is_defined = [](const at::Tensor& part) { return part.defined(); };
    if (std::none_of(parts.begin(), parts.end(), is_defined)) continue;
    if (!all(parts, is_defined)) {
      throw UsageError(
          {.component = "DataParallel"},
          fmt::format("output {} is undefined in some replicas and not in others", number),
          "return the same outputs for every part of a batch");
    }
    GatheredOutput gathered;
    *pointers[number] = [&] {
      const at::NoGradGuard no_grad;
      return gather_one(parts, scatter_->dim(), device, number, gathered);
    }();
    const auto needs_gradient = [](const at::Tensor& part) { return part.requires_grad(); };
    if (!records_ || std::none_of(parts.begin(), parts.end(), needs_gradient)) continue;
    for (std::size_t replica = 0; replica < parts.size(); ++replica) {
      graphs_[replica].roots.push_back(needs_gradient(parts[replica])
                                           ? torch::autograd::impl::gradient_edge(parts[replica])
                                           : torch::autograd::Edge());
    }
    with_history.push_back(*pointers[number]);
    how.push_back(std::move(gathered));
  }
  if (with_history.empty()) return;
  if (!replicas_.leaves_checked()) {
    for (std::size_t replica = 0; replica < outputs.size(); ++replica) {
      check_leaves(replicas_, static_cast<int>(replica), graphs_[replica].roots);
    }
    replicas_.set_leaves_checked();
  }
  std::vector<GradientTarget> wanted = targets();  // reads graphs_, which is moved next
  set_replica_history(with_history, std::move(how), std::move(graphs_), std::move(wanted),
                      *scatter_, workers_);
}

}  // namespace lockstep
