// SPDX-License-Identifier: BSD-3-Clause
// Sums over a tree of microbatches have the bits of one process, over each backend.
#include "lockstep/comm/tree_sum.h"

#include <vector>

#include "comm/conformance/conformance.h"
#include "comm/conformance/reference.h"
#include <ATen/ATen.h>
#include <fmt/format.h>

namespace lockstep::testing {
namespace {

constexpr double kScale = 1.0 / 7;

std::vector<at::Tensor> partial_sums(const SumTree& tree, LeafRange run, std::int64_t elements,
                                     at::ScalarType type, const std::vector<at::Tensor>& memory) {
  TreeSum sum(tree, elements, at::TensorOptions(type), memory);
  sum.begin(run);
  for (std::int64_t leaf = run.begin; leaf < run.end; ++leaf) {
    const at::Tensor terms = at::arange(elements, at::kDouble)
                                 .add_(31.0 * static_cast<double>(leaf))
                                 .sin_()
                                 .mul_(100)
                                 .to(type);
    sum.add([&](const at::Tensor& to, bool adds) { adds ? to.add_(terms) : to.copy_(terms); });
  }
  return sum.partials();
}

TEST_P(ResultsConformance, TreeAllReduceHasTheBitsOfOneProcess) {
  run_in_group([&](Rank&, ProcessGroup& group) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      for (const std::int64_t elements : {1, 3, 1000, 70001}) {
        for (const std::int64_t more : {0, 1, 3, 4}) {
          const SumTree tree(group.size() + more);
          const auto runs = even_runs(tree.leaves(), group.size());
          const LeafRange own = runs[static_cast<std::size_t>(group.rank())];
          const at::Tensor expected =
              sum_of_runs({partial_sums(tree, {0, tree.leaves()}, elements, type, {})}, tree,
                          even_runs(tree.leaves(), 1), kScale);
          const std::string what = fmt::format("{} elements of {}, {} leaves", elements,
                                               c10::toString(type), tree.leaves());
          expect_same_bits(tree_all_reduce(partial_sums(tree, own, elements, type, {}), tree, runs,
                                           group, kScale),
                           expected, what);
          const auto memory = partial_memory(tree, runs, elements, type, group);
          for (int repetition = 0; repetition < 2; ++repetition) {
            expect_same_bits(tree_all_reduce(partial_sums(tree, own, elements, type, memory), tree,
                                             runs, group, kScale, memory),
                             expected, what + ", in memory of the group");
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
