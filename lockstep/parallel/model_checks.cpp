// SPDX-License-Identifier: BSD-3-Clause
// Checks the gradients of one process, and compares hashes of the tensors of all ranks to find the
// ranks that differ.
#include "lockstep/parallel/model_checks.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/comm/types/call_origin.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/finite_gradients.h"
#include "lockstep/parallel/model_agreement.h"

namespace lockstep {
namespace {

bool is_statistic_of_a_rank(const std::string& buffer) {
  return buffer.ends_with("running_mean") || buffer.ends_with("running_var");
}

struct Compared {
  std::vector<NamedTensor> parameters = {};
  std::vector<NamedTensor> buffers = {};
  // The compared tensors, with their names for messages; a gradient may be undefined.
  std::vector<NamedTensor> values = {};
};

Compared to_compare(const torch::nn::Module& module, const InSyncOptions& options) {
  Compared compared;
  compared.parameters = distinct_named_parameters(module);
  for (const NamedTensor& parameter : compared.parameters) {
    compared.values.push_back({"parameter " + parameter.name, parameter.tensor});
  }
  for (const auto& item : module.named_buffers()) {
    compared.buffers.push_back({item.key(), item.value()});
    if (!options.buffers || is_statistic_of_a_rank(item.key())) continue;
    compared.values.push_back({"buffer " + item.key(), item.value()});
  }
  for (const NamedTensor& parameter : compared.parameters) {
    if (!options.gradients) break;
    compared.values.push_back({"the gradient of " + parameter.name, parameter.tensor.grad()});
  }
  return compared;
}

// One hash per value; 0 for an undefined one.
at::Tensor hashes_of(const std::vector<NamedTensor>& values) {
  const at::Tensor hashes = at::zeros({static_cast<std::int64_t>(values.size())}, at::kLong);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i].tensor.defined()) continue;
    hashes.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(tensor_hash(values[i].tensor));
  }
  return hashes;
}

// One row per rank.
at::Tensor of_all_ranks(ProcessGroup& group, const at::Tensor& hashes) {
  at::Tensor all = at::empty({group.size(), hashes.numel()}, at::kLong);
  group.all_gather_into_tensor(all, hashes).wait();
  return all;
}

bool all_ranks_have(ProcessGroup& group, std::uint64_t hash) {
  const at::Tensor all =
      of_all_ranks(group, at::full({1}, static_cast<std::int64_t>(hash), at::kLong));
  return all.eq(all[0]).all().item<bool>();
}

// Groups the ranks by their values. Empty if a rank has no value to compare.
std::vector<std::vector<int>> ranks_by_value(const at::Tensor& hashes, std::size_t value) {
  std::vector<std::pair<std::int64_t, std::vector<int>>> groups;
  for (std::int64_t rank = 0; rank < hashes.size(0); ++rank) {
    const std::int64_t hash = hashes[rank].data_ptr<std::int64_t>()[value];
    if (hash == 0) return {};
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& other) { return other.first == hash; });
    if (group == groups.end()) group = groups.insert(group, {hash, {}});
    group->second.push_back(static_cast<int>(rank));
  }
  std::vector<std::vector<int>> result;
  for (auto& [hash, ranks] : groups) result.push_back(std::move(ranks));
  return result;
}

std::string difference_of(const std::string& name, const std::vector<std::vector<int>>& groups) {
  std::string text;
  for (const auto& ranks : groups) {
    text += fmt::format("{} on {}", text.empty() ? "one value" : ", another", rank_list(ranks));
  }
  return fmt::format("{} has {}", name, text);
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
  throw NonFiniteGradient(
      ErrorDetails{.cause = first_of(findings),
                   .remedy = "clear the gradients (optimizer.zero_grad()) and skip the step, or "
                             "lower the learning rate"});
}

void check_in_sync(const torch::nn::Module& module, GroupArgument argument,
                   const InSyncOptions& options) {
  const CallScope scope(CallOrigin::check_in_sync);
  ProcessGroup& group = argument.get();
  const Compared compared = to_compare(module, options);
  std::vector<std::string> lines = describe("parameter", compared.parameters);
  for (std::string& line : describe("buffer", compared.buffers)) lines.push_back(std::move(line));
  lines.push_back(fmt::format("buffers={}, gradients={}", options.buffers, options.gradients));
  const at::Tensor mine = hashes_of(compared.values);
  // Ranks that compare different tensors have different numbers of hashes, which cannot be
  // exchanged.
  check_agreement(group, "check_in_sync", lines);
  if (all_ranks_have(group, tensor_hash(mine))) return;

  const at::Tensor hashes = of_all_ranks(group, mine);
  std::string first;
  int more = -1;
  for (std::size_t i = 0; i < compared.values.size(); ++i) {
    const auto groups = ranks_by_value(hashes, i);
    if (groups.size() < 2) continue;
    if (first.empty()) first = difference_of(compared.values[i].name, groups);
    ++more;
  }
  if (first.empty()) return;
  throw OutOfSync(
      group.context("check_in_sync"),
      fmt::format(
          "the ranks are out of sync: {}{}. Only some ranks changed it (`if (rank == 0)`, another "
          "optimizer, faulty memory)",
          first,
          more == 0 ? "" : fmt::format("; {} more {}", more, more == 1 ? "differs" : "differ")),
      "go back to a checkpoint, or wrap the module again, which gives every rank what rank 0 has");
}

void check_in_sync(const DistributedDataParallelBase& model, const InSyncOptions& options) {
  check_in_sync(*model.children().front(), *model.group(), options);
}

}  // namespace lockstep
