// SPDX-License-Identifier: BSD-3-Clause
// Sums over a tree whose leaves are on several ranks: exchanges the partial sums, or adds them
// where they lie in memory that all ranks map.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/tree_sum.h"
#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/tensor/kernels/reduce.h"

namespace lockstep {
namespace {

// The elements that each rank sums for all, so many that parts do not share cache lines.
std::int64_t elements_of_part(std::int64_t elements, int ranks) {
  constexpr std::int64_t kAligned = 64;
  const std::int64_t part = (elements + ranks - 1) / ranks;
  return (part + kAligned - 1) / kAligned * kAligned;
}

// Below this, every rank sums all elements: one call takes less time than two.
constexpr std::size_t kFewBytes = 4096;

// The partial sums of each run, which are the first rows of its rank's tensor.
std::vector<std::vector<at::Tensor>> rows_of_runs(const std::vector<at::Tensor>& of_ranks,
                                                  const SumTree& tree,
                                                  std::span<const LeafRange> runs) {
  std::vector<std::vector<at::Tensor>> partials(runs.size());
  for (std::size_t rank = 0; rank < runs.size(); ++rank) {
    const auto rows = static_cast<std::int64_t>(tree.subtrees(runs[rank]).size());
    for (std::int64_t row = 0; row < rows; ++row) partials[rank].push_back(of_ranks[rank][row]);
  }
  return partials;
}

// Every rank gets all partial sums.
at::Tensor gather_and_sum(const std::vector<at::Tensor>& partials, const SumTree& tree,
                          std::span<const LeafRange> runs, ProcessGroup& group, double scale) {
  const at::Tensor& any = partials.front();
  const auto rows = static_cast<std::int64_t>(tree.most_subtrees(runs));
  const at::Tensor own = at::zeros({rows, any.numel()}, any.options());
  for (std::size_t i = 0; i < partials.size(); ++i) {
    own.select(0, static_cast<std::int64_t>(i)).copy_(partials[i]);
  }
  const at::Tensor all = at::empty({group.size() * rows, any.numel()}, any.options());
  group.all_gather_into_tensor(all, own).wait();
  std::vector<at::Tensor> of_ranks;
  for (int rank = 0; rank < group.size(); ++rank) {
    of_ranks.push_back(all.narrow(0, rank * rows, rows));
  }
  return sum_of_runs(rows_of_runs(of_ranks, tree, runs), tree, runs, scale);
}

// Each rank gets its part of all partial sums, sums it, and passes the sum on.
at::Tensor exchange_and_sum(const std::vector<at::Tensor>& partials, const SumTree& tree,
                            std::span<const LeafRange> runs, ProcessGroup& group, double scale) {
  const at::Tensor& any = partials.front();
  const std::int64_t elements = any.numel();
  const std::int64_t part = elements_of_part(elements, group.size());
  const auto begin_of = [&](int rank) { return std::min(elements, rank * part); };
  const auto size_of = [&](int rank) { return begin_of(rank + 1) - begin_of(rank); };
  const std::int64_t own = size_of(group.rank());

  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  for (int peer = 0; peer < group.size(); ++peer) {
    std::vector<at::Tensor> parts;
    for (const at::Tensor& partial : partials) {
      parts.push_back(partial.narrow(0, begin_of(peer), size_of(peer)));
    }
    inputs.push_back(parts.size() == 1 ? parts.front() : at::cat(parts));
    const auto rows =
        static_cast<std::int64_t>(tree.subtrees(runs[static_cast<std::size_t>(peer)]).size());
    outputs.push_back(at::empty({rows * own}, any.options()));
    if (peer != group.rank()) group.count_sent(static_cast<std::int64_t>(inputs.back().nbytes()));
  }
  group.all_to_all(outputs, inputs).wait();

  // The part of the last ranks may be shorter than the others, or empty.
  const at::Tensor padded = at::zeros({part}, any.options());
  if (own > 0) {
    for (at::Tensor& output : outputs) output = output.view({-1, own});
    const at::Tensor sum = sum_of_runs(rows_of_runs(outputs, tree, runs), tree, runs, scale);
    padded.narrow(0, 0, own).copy_(sum);
  }
  const at::Tensor all = at::empty({group.size() * part}, any.options());
  group.all_gather_into_tensor(all, padded).wait();
  return all.narrow(0, 0, elements);
}

// One rank's sum of its part of the elements, read from the memory of all ranks and written there.
class MappedSum {
 public:
  // `memory`: addresses by partial sum and rank.
  MappedSum(const std::vector<std::vector<std::byte*>>& memory, const SumTree& tree,
            std::span<const LeafRange> runs, at::ScalarType type, double scale)
      : memory_(memory), tree_(tree), type_(type), size_(c10::elementSize(type)), scale_(scale) {
    for (std::size_t rank = 0; rank < runs.size(); ++rank) {
      std::size_t number = 0;
      for (const LeafRange& node : tree.subtrees(runs[rank])) {
        leaves_.push_back({node, memory[number++][rank]});
      }
    }
  }

  // Tiles stay in cache while the nodes above them are added up.
  void add(std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kTile = 4096;
    for (std::int64_t first = begin; first < end; first += kTile) {
      add_tile(first, std::min(kTile, end - first));
    }
  }

 private:
  struct Node {
    LeafRange range;
    const std::byte* elements;
    std::byte* tile = nullptr;  // the same, if it is a tile of this object
  };

  void add_tile(std::int64_t first, std::int64_t count) {
    const std::size_t offset = static_cast<std::size_t>(first) * size_;
    std::vector<void*> targets;
    for (std::byte* memory : memory_.front()) targets.push_back(memory + offset);
    std::vector<Node> nodes;
    std::size_t tiles = 0;
    for (const Node& leaf : leaves_) {
      nodes.push_back({leaf.range, leaf.elements + offset});
      while (nodes.size() > 1) {
        const Node right = nodes.back();
        Node& left = nodes[nodes.size() - 2];
        if (!tree_.are_siblings(left.range, right.range)) break;
        const bool is_root = left.range.begin == 0 && right.range.end == tree_.leaves();
        const std::array<const void*, 2> sources{left.elements, right.elements};
        if (is_root && SumTree::scales_before_rounding(type_)) {
          reduce(sources, targets, count, type_, ReduceOp::sum, scale_);
          return;
        }
        if (left.tile == nullptr) left.tile = tile(tiles++, count);
        const std::array<void*, 1> sum{left.tile};
        reduce(sources, sum, count, type_, ReduceOp::sum, 1);
        left.elements = left.tile;
        left.range.end = right.range.end;
        nodes.pop_back();
      }
    }
    const std::array<const void*, 1> root{nodes.front().elements};
    reduce(root, targets, count, type_, ReduceOp::sum, scale_);
  }

  // A tile is not reused within add_tile().
  std::byte* tile(std::size_t number, std::int64_t count) {
    if (number == tiles_.size()) tiles_.emplace_back();
    tiles_[number].resize(std::max(tiles_[number].size(), static_cast<std::size_t>(count) * size_));
    return tiles_[number].data();
  }

  const std::vector<std::vector<std::byte*>>& memory_;
  const SumTree& tree_;
  at::ScalarType type_;
  std::size_t size_;
  double scale_;
  std::vector<Node> leaves_;
  std::deque<std::vector<std::byte>> tiles_;
};

// Each rank sums its part in the memory of all ranks. Between the barriers, no other rank reads or
// writes this part.
at::Tensor sum_in_mapped_memory(const std::vector<std::vector<std::byte*>>& addresses,
                                const at::Tensor& first, const SumTree& tree,
                                std::span<const LeafRange> runs, ProcessGroup& group,
                                double scale) {
  const std::int64_t elements = first.numel();
  const std::int64_t part = elements_of_part(elements, group.size());
  const std::int64_t begin = std::min(elements, group.rank() * part);
  const std::int64_t end = std::min(elements, begin + part);
  group.barrier().wait();
  MappedSum(addresses, tree, runs, first.scalar_type(), scale).add(begin, end);
  group.barrier().wait();
  const auto partials =
      static_cast<std::int64_t>(tree.subtrees(runs[static_cast<std::size_t>(group.rank())]).size());
  const std::int64_t of_others = (elements - (end - begin)) * partials;
  const std::int64_t of_sum = (end - begin) * (group.size() - 1);
  group.count_sent((of_others + of_sum) * first.element_size());
  return first;
}

}  // namespace

std::vector<at::Tensor> partial_memory(const SumTree& tree, std::span<const LeafRange> runs,
                                       std::int64_t elements, const at::TensorOptions& options,
                                       ProcessGroup& group) {
  if (group.size() == 1 || !options.device().is_cpu()) return {};
  const std::size_t most = tree.most_subtrees(runs);
  std::vector<at::Tensor> memory;
  for (std::size_t i = 0; i < most; ++i) {
    memory.push_back(group.empty({elements}, options.device(at::kCPU)));
    memory.back().zero_();
  }
  return memory;
}

at::Tensor tree_all_reduce(const std::vector<at::Tensor>& partials, const SumTree& tree,
                           std::span<const LeafRange> runs, ProcessGroup& group, double scale,
                           const std::vector<at::Tensor>& memory) {
  const at::NoGradGuard no_grad;
  const CallScope scope(CallOrigin::tree_all_reduce);
  const ErrorContext caller = group.context({}, "tree_all_reduce");
  tree.require_runs(runs, caller);
  if (static_cast<int>(runs.size()) != group.size()) {
    throw UsageError(caller, fmt::format("there are runs for {} ranks", runs.size()),
                     "give one for each rank");
  }
  if (group.size() == 1) return sum_of_runs({partials}, tree, runs, scale);
  tree.require_partials(partials, runs[static_cast<std::size_t>(group.rank())], caller);
  const at::Tensor& first = partials.front();
  for (std::size_t i = 0; !memory.empty() && i < partials.size(); ++i) {
    if (i < memory.size() && memory[i].is_same(partials[i])) continue;
    throw UsageError(caller, fmt::format("partial sum {} does not lie in the given memory", i),
                     "give the TreeSum the same memory, or leave it out here");
  }
  std::vector<std::vector<std::byte*>> addresses;
  for (const at::Tensor& partial : memory) addresses.push_back(group.symmetric_memory(partial));
  if (!addresses.empty() && !addresses.front().empty()) {
    return sum_in_mapped_memory(addresses, memory.front(), tree, runs, group, scale);
  }
  // Two terms have one sum, whatever adds them; but a GPU's library may scale in its own way.
  const bool has_two_terms =
      group.size() == 2 && tree.subtrees(runs[0]).size() == 1 && tree.subtrees(runs[1]).size() == 1;
  if (has_two_terms && SumTree::scales_before_rounding(first.scalar_type()) &&
      first.device().is_cpu() && group.device().is_cpu()) {
    group.all_reduce(first, {.scale = scale}).wait();
    return first;
  }
  const bool is_small = first.nbytes() <= kFewBytes;
  return is_small ? gather_and_sum(partials, tree, runs, group, scale)
                  : exchange_and_sum(partials, tree, runs, group, scale);
}

}  // namespace lockstep
