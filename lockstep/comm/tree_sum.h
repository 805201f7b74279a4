// SPDX-License-Identifier: BSD-3-Clause
// Public. Sums over a fixed binary tree, which have the same bits for any number of ranks: the tree
// depends only on the number of terms, its leaves, not on which rank computes which.
//
//   const SumTree tree(6);                                // six microbatches
//   const auto runs = even_runs(6, group->size());        // two each on three ranks
//   TreeSum sum(tree, elements, at::kFloat);
//   sum.begin(runs[group->rank()]);
//   sum.add([&](const at::Tensor& to, bool adds) { adds ? to.add_(leaf) : to.copy_(leaf); });
//   ...
//   at::Tensor total = tree_all_reduce(sum.partials(), tree, runs, *group);
//
// A node of level k covers 2^k consecutive leaves, the last one of a level possibly fewer; a node
// with a single child is that child. Floating-point addition is commutative but not associative, so
// the pairs that are added decide the bits, and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/core/error.h"

namespace lockstep {

class ProcessGroup;

// The leaves begin, ..., end - 1.
struct LeafRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
  bool operator==(const LeafRange&) const = default;
};

// Divides the leaves among the ranks: a consecutive run for each, in the order of the ranks, whose
// sizes differ by at most one. UsageError unless there is at least one leaf for each rank.
std::vector<LeafRange> even_runs(std::int64_t leaves, int ranks);

class SumTree {
 public:
  // UsageError unless there is at least one leaf.
  explicit SumTree(std::int64_t leaves);

  std::int64_t leaves() const { return leaves_; }
  // Whether `left` and `right` are the two children of a node.
  bool are_siblings(LeafRange left, LeafRange right) const;
  // The largest nodes that together are the run, in order: at most two for each level of the tree.
  std::vector<LeafRange> subtrees(LeafRange run) const;
  // The number of subtrees of the run that has the most.
  std::size_t most_subtrees(std::span<const LeafRange> runs) const;
  // UsageError in the caller's context unless the runs are consecutive and together all leaves, and
  // none is empty.
  void require_runs(std::span<const LeafRange> runs, const ErrorContext& caller) const;
  // UsageError in the caller's context unless there is a partial sum for each of subtrees(run), and
  // all are one-dimensional tensors of one size and floating type.
  void require_partials(const std::vector<at::Tensor>& partials, LeafRange run,
                        const ErrorContext& caller) const;
  // Whether the root is scaled before it is rounded. Half types are rounded first, as if another
  // rank had scaled them.
  static bool scales_before_rounding(at::ScalarType type);

 private:
  std::int64_t leaves_;
};

// The sums of the largest nodes in a run of leaves, which are added one after another. Holds a
// tensor for each of the largest nodes of the leaves so far, and reuses their memory: beside the
// subtrees of the run, fewer than log2(leaves).
class TreeSum {
 public:
  // For leaves of `elements` elements. The partial sums lie in `memory`, as far as it reaches.
  TreeSum(SumTree tree, std::int64_t elements, const at::TensorOptions& options,
          std::vector<at::Tensor> memory = {});

  // Writes the elements of a leaf to the tensor; adds them to it if `adds`.
  using Leaf = std::function<void(const at::Tensor& to, bool adds)>;

  // Starts a run; earlier partial sums are invalid.
  void begin(LeafRange run);
  // Adds the next leaf of the run.
  void add(const Leaf& leaf);
  // The number of the next leaf.
  std::int64_t next() const { return next_; }
  // The sums of tree.subtrees(run), once all leaves of the run have been added. They stay valid
  // until the next begin().
  std::vector<at::Tensor> partials() const;

 private:
  struct Node {
    LeafRange range;
    at::Tensor sum;
  };
  at::Tensor buffer_for(std::int64_t leaf);

  SumTree tree_;
  std::int64_t elements_;
  at::TensorOptions options_;
  std::int64_t next_ = 0;
  std::vector<Node> nodes_;
  std::vector<at::Tensor> memory_;
  std::vector<LeafRange> subtrees_;  // of the run
  std::vector<at::Tensor> buffers_;  // others, not in use
};

// Adds the partial sums of one tree that several threads of a process, or a single one, have
// computed: `partials` belong to the consecutive runs. Returns the sum of all leaves, multiplied by
// `scale`, in the memory of one of them; the others are overwritten.
at::Tensor sum_of_runs(const std::vector<std::vector<at::Tensor>>& partials, const SumTree& tree,
                       std::span<const LeafRange> runs, double scale = 1);

// Collective. Returns memory for the partial sums of this rank, in which tree_all_reduce() is
// fastest where ranks share memory; empty for a group of one and on GPUs. Every rank passes the
// same arguments. Errors as of ProcessGroup::empty().
std::vector<at::Tensor> partial_memory(const SumTree& tree, std::span<const LeafRange> runs,
                                       std::int64_t elements, const at::TensorOptions& options,
                                       ProcessGroup& group);

// Collective, blocking. Returns the sum of all leaves, multiplied by `scale`, on every rank.
// `partials`: what TreeSum returns for runs[rank], one-dimensional tensors of a floating type,
// which are overwritten. `memory`: what partial_memory() returned, if the TreeSum has it. Each rank
// sums a part of the elements for all, from the partial sums of all ranks. If every run is a
// subtree, as for 4 leaves and 2 or 4 ranks, a rank sends as many bytes as in an all_reduce of the
// tensor; with S subtrees, (S + 1) / 2 times as many. Tensors of up to 4 KiB are gathered whole
// unless ranks share memory.
//
// The bits depend on the partial sums and the tree alone, for any backend. On GPUs, libtorch adds
// the elements, on the current stream. UsageError for runs or partial sums that do not fit.
at::Tensor tree_all_reduce(const std::vector<at::Tensor>& partials, const SumTree& tree,
                           std::span<const LeafRange> runs, ProcessGroup& group, double scale = 1,
                           const std::vector<at::Tensor>& memory = {});

}  // namespace lockstep
