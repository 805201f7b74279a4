// SPDX-License-Identifier: BSD-3-Clause
// Notes non-finite contributions and sums, and exchanges the contributions if a sum is not finite.
#include <algorithm>
#include <cstdint>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/parallel/finite_findings.h"
#include "lockstep/parallel/model_checks.h"
#include "lockstep/parallel/rank_list.h"

namespace lockstep {
namespace {

// Only the first few, since one NaN in a loss makes all gradients NaN.
std::string first_of(const std::vector<std::string>& findings) {
  constexpr std::size_t kMost = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(findings.size(), kMost); ++i) {
    text += (i == 0 ? "" : "; ") + findings[i];
  }
  if (findings.size() > kMost) {
    text += fmt::format("; {} more parameters", findings.size() - kMost);
  }
  return text;
}

std::string finding(const std::string& name, const std::vector<int>& ranks) {
  if (ranks.empty()) {
    return fmt::format("the gradient of {} overflows in the sum, though it is finite on every rank",
                       name);
  }
  return fmt::format("the gradient of {} is not finite on {}", name, rank_list(ranks));
}

}  // namespace

void check_finite_gradients(const torch::nn::Module& module) {
  std::vector<std::string> findings;
  for (const auto& [name, parameter] : distinct_named_parameters(module)) {
    at::Tensor gradient = parameter.grad();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse()) gradient = gradient._values();
    if (FiniteCheck(gradient).passes()) continue;
    findings.push_back(fmt::format("the gradient of {} is not finite", name));
  }
  if (findings.empty()) return;
  throw NonFiniteGradient(first_of(findings) +
                          ". Clear the gradients (optimizer.zero_grad()) and skip the step, or "
                          "lower the learning rate");
}

FiniteGradients::FiniteGradients(std::vector<std::string> parameters)
    : names_(std::move(parameters)), contributed_(names_.size()) {}

void FiniteGradients::contributed(int parameter, const at::Tensor& gradient) {
  contributed_[static_cast<std::size_t>(parameter)] =
      gradient.defined() ? FiniteCheck(gradient) : FiniteCheck();
}

void FiniteGradients::reduced(const Bucket& bucket) {
  if (FiniteCheck(bucket.means()).passes()) return;
  for (int index = 0; index < bucket.size(); ++index) {
    const at::Tensor means = bucket.is_divided() ? bucket.own_part(index) : bucket.gradient(index);
    if (FiniteCheck(means).passes()) continue;
    found_.push_back(bucket.parameters()[static_cast<std::size_t>(index)]);
  }
}

std::string FiniteGradients::conclude(ProcessGroup& group) {
  std::vector<int> found = std::exchange(found_, {});
  if (found.empty()) return {};
  std::sort(found.begin(), found.end());
  const at::Tensor mine = at::zeros({static_cast<std::int64_t>(names_.size())}, at::kByte);
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (!contributed_[i].passes()) mine.data_ptr<std::uint8_t>()[i] = 1;
  }
  const at::Tensor all = at::empty({group.size(), mine.numel()}, at::kByte);
  group.all_gather_into_tensor(all, mine).wait();
  std::vector<std::string> findings;
  for (const int parameter : found) {
    std::vector<int> ranks;
    for (int rank = 0; rank < group.size(); ++rank) {
      if (all[rank].data_ptr<std::uint8_t>()[parameter] != 0) ranks.push_back(rank);
    }
    findings.push_back(finding(names_[static_cast<std::size_t>(parameter)], ranks));
  }
  return first_of(findings);
}

}  // namespace lockstep
