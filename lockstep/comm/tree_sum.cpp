// SPDX-License-Identifier: BSD-3-Clause
// Adds the nodes of a tree as soon as both children are there.
#include "lockstep/comm/tree_sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/tensor/kernels/reduce.h"

namespace lockstep {
namespace {

bool is_power_of_two(std::int64_t number) {
  return std::has_single_bit(static_cast<std::uint64_t>(number));
}

// A node and its sum.
struct SummedNode {
  LeafRange range;
  at::Tensor sum;
};

void scale_in_place(const at::Tensor& sum, double scale) {
  if (scale == 1) return;
  if (!sum.device().is_cpu()) {
    sum.mul_(scale);
    return;
  }
  const std::array<const void*, 1> source{sum.data_ptr()};
  const std::array<void*, 1> destination{sum.data_ptr()};
  reduce(source, destination, sum.numel(), sum.scalar_type(), ReduceOp::sum, scale);
}

// left += right, then left *= scale.
void add_scaled(const at::Tensor& left, const at::Tensor& right, double scale) {
  const bool at_once =
      left.device().is_cpu() && SumTree::scales_before_rounding(left.scalar_type());
  if (left.device().is_cpu()) {
    const std::array<const void*, 2> sources{left.data_ptr(), right.data_ptr()};
    const std::array<void*, 1> destination{left.data_ptr()};
    reduce(sources, destination, left.numel(), left.scalar_type(), ReduceOp::sum,
           at_once ? scale : 1);
  } else {
    left.add_(right);
  }
  if (!at_once) scale_in_place(left, scale);
}

// Adds nodes in the order of their leaves. The root is scaled.
class NodeStack {
 public:
  NodeStack(const SumTree& tree, double scale) : tree_(tree), scale_(scale) {}

  void add(SummedNode node) {
    nodes_.push_back(std::move(node));
    while (nodes_.size() > 1) {
      const SummedNode right = nodes_.back();
      SummedNode& left = nodes_[nodes_.size() - 2];
      if (!tree_.are_siblings(left.range, right.range)) return;
      const bool is_root = left.range.begin == 0 && right.range.end == tree_.leaves();
      add_scaled(left.sum, right.sum, is_root ? scale_ : 1);
      left.range.end = right.range.end;
      nodes_.pop_back();
      is_scaled_ = is_root;
    }
  }

  at::Tensor root() const {
    const at::Tensor sum = nodes_.front().sum;
    if (!is_scaled_) scale_in_place(sum, scale_);
    return sum;
  }

 private:
  const SumTree& tree_;
  double scale_;
  std::vector<SummedNode> nodes_;
  bool is_scaled_ = false;
};

}  // namespace

std::vector<LeafRange> even_runs(std::int64_t leaves, int ranks) {
  if (ranks < 1 || leaves < ranks) {
    throw UsageError({.operation = "even_runs"},
                     fmt::format("{} microbatches cannot be divided among {} ranks", leaves, ranks),
                     "give at least one for each rank");
  }
  std::vector<LeafRange> runs;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    runs.push_back({rank * leaves / ranks, (rank + 1) * leaves / ranks});
  }
  return runs;
}

SumTree::SumTree(std::int64_t leaves) : leaves_(leaves) {
  if (leaves >= 1) return;
  throw UsageError(fmt::format("a tree of {} leaves has no sum; give at least 1", leaves));
}

// A left child is complete, and begins where a node of the next level does.
bool SumTree::are_siblings(LeafRange left, LeafRange right) const {
  const std::int64_t half = left.size();
  return left.end == right.begin && is_power_of_two(half) && left.begin % (2 * half) == 0 &&
         right.end == std::min(left.begin + 2 * half, leaves_);
}

std::vector<LeafRange> SumTree::subtrees(LeafRange run) const {
  std::vector<LeafRange> nodes;
  for (std::int64_t leaf = run.begin; leaf < run.end; ++leaf) {
    nodes.push_back({leaf, leaf + 1});
    while (nodes.size() > 1 && are_siblings(nodes[nodes.size() - 2], nodes.back())) {
      nodes[nodes.size() - 2].end = nodes.back().end;
      nodes.pop_back();
    }
  }
  return nodes;
}

std::size_t SumTree::most_subtrees(std::span<const LeafRange> runs) const {
  std::size_t most = 0;
  for (const LeafRange& run : runs) most = std::max(most, subtrees(run).size());
  return most;
}

void SumTree::require_runs(std::span<const LeafRange> runs, const ErrorContext& caller) const {
  std::int64_t next = 0;
  for (const LeafRange& run : runs) {
    if (run.begin != next || run.end <= run.begin) break;
    next = run.end;
  }
  if (next == leaves_) return;
  throw UsageError(caller,
                   fmt::format("{} run{} that {} not {} consecutive leaves, at least one for each "
                               "rank",
                               runs.size(), runs.size() == 1 ? "" : "s",
                               runs.size() == 1 ? "is" : "are", leaves_),
                   "take them from even_runs()");
}

void SumTree::require_partials(const std::vector<at::Tensor>& partials, LeafRange run,
                               const ErrorContext& caller) const {
  const std::size_t expected = subtrees(run).size();
  const bool fit =
      partials.size() == expected && std::ranges::all_of(partials, [&](const at::Tensor& partial) {
        return partial.dim() == 1 && partial.is_contiguous() && partial.is_floating_point() &&
               partial.numel() == partials.front().numel() &&
               partial.scalar_type() == partials.front().scalar_type();
      });
  if (fit) return;
  throw UsageError(caller,
                   fmt::format("the number of partial sums is {} instead of {}, or they are not "
                               "one-dimensional tensors of one size and floating type",
                               partials.size(), expected),
                   "take them from TreeSum::partials()");
}

bool SumTree::scales_before_rounding(at::ScalarType type) {
  return type == at::kFloat || type == at::kDouble;
}

TreeSum::TreeSum(SumTree tree, std::int64_t elements, const at::TensorOptions& options,
                 std::vector<at::Tensor> memory)
    : tree_(tree), elements_(elements), options_(options), memory_(std::move(memory)) {}

void TreeSum::begin(LeafRange run) {
  next_ = run.begin;
  for (std::size_t i = memory_.size(); i < nodes_.size(); ++i) {
    buffers_.push_back(std::move(nodes_[i].sum));
  }
  nodes_.clear();
  subtrees_ = tree_.subtrees(run);
}

// A partial sum begins with the first leaf of its subtree, and stays where it is.
at::Tensor TreeSum::buffer_for(std::int64_t leaf) {
  for (std::size_t i = 0; i < std::min(subtrees_.size(), memory_.size()); ++i) {
    if (subtrees_[i].begin == leaf) return memory_[i];
  }
  // Elements that no leaf writes are added too: no slow or trapping bit patterns.
  if (buffers_.empty()) return at::zeros({elements_}, options_);
  at::Tensor buffer = std::move(buffers_.back());
  buffers_.pop_back();
  return buffer;
}

void TreeSum::add(const Leaf& leaf) {
  const at::NoGradGuard no_grad;
  const LeafRange range{next_, next_ + 1};
  ++next_;
  if (!nodes_.empty() && tree_.are_siblings(nodes_.back().range, range)) {
    leaf(nodes_.back().sum, /*adds=*/true);
    nodes_.back().range.end = range.end;
  } else {
    at::Tensor sum = buffer_for(range.begin);
    leaf(sum, /*adds=*/false);
    nodes_.push_back({range, std::move(sum)});
  }
  while (nodes_.size() > 1) {
    Node& left = nodes_[nodes_.size() - 2];
    Node& right = nodes_.back();
    if (!tree_.are_siblings(left.range, right.range)) return;
    add_scaled(left.sum, right.sum, 1);
    left.range.end = right.range.end;
    buffers_.push_back(std::move(right.sum));
    nodes_.pop_back();
  }
}

std::vector<at::Tensor> TreeSum::partials() const {
  std::vector<at::Tensor> sums;
  for (const Node& node : nodes_) sums.push_back(node.sum);
  return sums;
}

at::Tensor sum_of_runs(const std::vector<std::vector<at::Tensor>>& partials, const SumTree& tree,
                       std::span<const LeafRange> runs, double scale) {
  const at::NoGradGuard no_grad;
  const ErrorContext caller{.operation = "sum_of_runs"};
  tree.require_runs(runs, caller);
  NodeStack sums(tree, scale);
  for (std::size_t run = 0; run < runs.size(); ++run) {
    tree.require_partials(partials.at(run), runs[run], caller);
    const std::vector<LeafRange> nodes = tree.subtrees(runs[run]);
    for (std::size_t i = 0; i < nodes.size(); ++i) sums.add({nodes[i], partials[run][i]});
  }
  return sums.root();
}

}  // namespace lockstep
