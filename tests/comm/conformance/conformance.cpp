// SPDX-License-Identifier: BSD-3-Clause
// Runs a conformance test's function on the ranks of a backend, and compares reductions.
#include "comm/conformance/conformance.h"

#include <ostream>

#include "comm/conformance/reference.h"
#include <ATen/ATen.h>

namespace lockstep::testing {
namespace {

// A few roundings of the largest number that the sum may pass through.
void expect_rounded(const at::Tensor& actual, const std::vector<at::Tensor>& inputs,
                    const at::Tensor& expected, const std::string& what) {
  const double epsilon = actual.scalar_type() == at::kBFloat16 ? 0x1p-7
                         : actual.scalar_type() == at::kHalf   ? 0x1p-10
                         : actual.scalar_type() == at::kFloat  ? 0x1p-23
                                                               : 0x1p-52;
  at::Tensor bound = at::zeros(expected.sizes(), at::kDouble);
  for (const at::Tensor& input : inputs) bound += input.to(at::kDouble).abs();
  const at::Tensor error = (actual.cpu().to(at::kDouble) - expected.to(at::kDouble)).abs();
  EXPECT_TRUE((error <= bound * (4 * epsilon)).all().item<bool>()) << what << ": a wrong mean";
}

}  // namespace

std::vector<Case> cases(const TestedBackend& backend, const std::vector<int>& sizes) {
  std::vector<Case> result;
  for (const int size : sizes) result.push_back({backend, size});
  return result;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return "of_" + std::to_string(info.param.size);
}

void PrintTo(const Case& value, std::ostream* stream) {
  *stream << value.backend.name << " of " << value.size;
}

std::vector<RankOutcome> Conformance::run_in_group(
    const std::function<void(Rank&, ProcessGroup&)>& function, const LaunchOptions& options,
    std::source_location where) const {
  return run(
      [&](Rank& rank) {
        const auto group = join(rank);
        function(rank, *group);
      },
      options, where);
}

void Conformance::expect_reduced(const at::Tensor& actual, const std::vector<at::Tensor>& inputs,
                                 const AllReduceOptions& options, const std::string& what) const {
  const at::Tensor expected = reduced(inputs, options);
  if (backend().sums_by_a_library && options.op == ReduceOp::mean) {
    expect_rounded(actual, inputs, expected, what);
  } else {
    expect_same_bits(actual, expected, what);
  }
}

}  // namespace lockstep::testing
