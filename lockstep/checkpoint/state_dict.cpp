// SPDX-License-Identifier: BSD-3-Clause
// Walks a module as PyTorch does; compares all tensors by name before it copies one.
#include "lockstep/checkpoint/state_dict.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <ATen/MemoryOverlap.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/core/in_quotes.h"
#include "lockstep/libtorch_compat.h"
#include "lockstep/parallel/one_copy.h"
#include "lockstep/parallel/parallel_module.h"

namespace lockstep {
namespace {

void append_state(const torch::nn::Module& module, const std::string& prefix,
                  std::vector<NamedTensor>& state) {
  if (dynamic_cast<const ParallelModule*>(&module) != nullptr) {
    return append_state(*module.named_children()["module"], prefix, state);
  }
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    state.push_back({prefix + item.key(), item.value()});
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    state.push_back({prefix + item.key(), item.value()});
  }
  for (const auto& child : module.named_children()) {
    if (child.value()) append_state(*child.value(), prefix + child.key() + ".", state);
  }
}

std::vector<NamedTensor> attached_state(const torch::nn::Module& module) {
  std::vector<NamedTensor> state;
  append_state(module, "", state);
  std::erase_if(state, [](const NamedTensor& entry) { return !entry.tensor.defined(); });
  return state;
}

std::map<std::string_view, at::Tensor> by_name(std::span<const NamedTensor> tensors) {
  std::map<std::string_view, at::Tensor> result;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) {
      throw UsageError(fmt::format("the tensor {} is undefined", in_quotes(name)));
    }
    if (!result.emplace(name, tensor).second) {
      throw UsageError(fmt::format("two tensors have the name {}", in_quotes(name)));
    }
  }
  return result;
}

// Returns why copy_() would throw, after other tensors have changed; empty if it would not.
std::string copy_fault(const at::Tensor& target, const at::Tensor& source) {
  if (source.layout() != at::kStrided || source.is_meta()) {
    return "is sparse, or on the device meta, and cannot be copied";
  }
  if (target.layout() != at::kStrided || target.is_meta()) {
    return "would be copied into a tensor that is sparse, or on the device meta";
  }
  if (at::has_internal_overlap(target) == at::MemOverlap::Yes) {
    return "would be copied into a view whose elements share memory, as expand() makes it";
  }
  return "";
}

bool is_same_memory(const at::Tensor& left, const at::Tensor& right) {
  return left.is_alias_of(right) && left.storage_offset() == right.storage_offset() &&
         left.sizes() == right.sizes() && left.strides() == right.strides() &&
         left.is_conj() == right.is_conj() && left.is_neg() == right.is_neg();
}

// Makes the copies independent of their order, since two layers may be swapped: clones a source in
// the memory of a target, and drops a source that is already in its place.
void separate_sources(std::vector<std::pair<at::Tensor, at::Tensor>>& copies) {
  std::erase_if(copies, [](const auto& copy) { return is_same_memory(copy.first, copy.second); });
  std::set<const void*> targets;
  for (const auto& [target, source] : copies) {
    targets.insert(target.storage().unsafeGetStorageImpl());
  }
  for (auto& [target, source] : copies) {
    if (targets.contains(source.storage().unsafeGetStorageImpl())) source = source.clone();
  }
}

// Returns the prefix, such as "module.", that turns shorter names into most of the longer ones;
// empty if there is none.
std::string common_prefix(const std::vector<std::string>& longer,
                          const std::vector<std::string>& shorter) {
  // A hostile file may have many names with many dots.
  constexpr std::size_t kMostNames = 1'000;
  constexpr int kMostDots = 3;
  const std::size_t names = std::min(longer.size(), kMostNames);
  const std::set<std::string_view> wanted(shorter.begin(), shorter.end());
  std::map<std::string_view, std::size_t> counts;
  for (std::size_t i = 0; i < names; ++i) {
    const std::string_view name = longer[i];
    std::size_t dot = name.find('.');
    for (int dots = 0; dots < kMostDots && dot != std::string_view::npos; ++dots) {
      if (wanted.contains(name.substr(dot + 1))) ++counts[name.substr(0, dot + 1)];
      dot = name.find('.', dot + 1);
    }
  }
  const auto most =
      std::ranges::max_element(counts, {}, [](const auto& item) { return item.second; });
  return most != counts.end() && most->second * 2 > names ? std::string(most->first) : "";
}

// Says what to do if names differ only by a prefix; empty otherwise.
std::string prefix_hint(const StateDifferences& differences) {
  if (const auto prefix = common_prefix(differences.unexpected, differences.missing);
      !prefix.empty()) {
    return fmt::format(
        "the unexpected names are the missing ones with {} in front, as Python's "
        "DistributedDataParallel (\"module.\"), torch.compile (\"_orig_mod.\") and modules around "
        "the net add it: save the inner module's state_dict() in Python, or cut the first {} "
        "characters off these names",
        in_quotes(prefix), prefix.size());
  }
  if (const auto prefix = common_prefix(differences.missing, differences.unexpected);
      !prefix.empty()) {
    return fmt::format(
        "the missing names are the unexpected ones with {} in front: load the tensors into that "
        "submodule, or put {} before their names",
        in_quotes(prefix), in_quotes(prefix));
  }
  return "";
}

}  // namespace

std::vector<NamedTensor> state_dict(const torch::nn::Module& module) {
  std::vector<NamedTensor> state = attached_state(module);
  for (auto& entry : state) entry.tensor = entry.tensor.detach();
  return state;
}

StateDifferences load_state_dict(torch::nn::Module& module, std::span<const NamedTensor> tensors,
                                 bool strict) {
  return detail::copy_by_name(
      attached_state(module), tensors, strict, fmt::format("this module ({})", module.name()),
      "build the net that was saved, take the part of the file that has its tensors "
      "(state_dict_of(value, \"model\")), or convert them with tensor.to(type)");
}

StateDifferences detail::copy_by_name(std::span<const NamedTensor> targets,
                                      std::span<const NamedTensor> tensors, bool strict,
                                      const std::string& owner, const std::string& remedy) {
  const auto sources = by_name(tensors);
  StateDifferences differences;
  std::vector<std::string> faults;
  std::set<std::string_view> known;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const auto& [name, target] : targets) {
    known.insert(name);
    const auto found = sources.find(name);
    if (found == sources.end()) {
      differences.missing.push_back(name);
      if (strict) faults.push_back(fmt::format("{} is missing", in_quotes(name)));
      continue;
    }
    const at::Tensor& source = found->second;
    if (source.sizes() != target.sizes()) {
      faults.push_back(fmt::format("{} has the shape {}, and the module's is {}", in_quotes(name),
                                   shape_text(source.sizes()), shape_text(target.sizes())));
    }
    if (source.scalar_type() != target.scalar_type()) {
      faults.push_back(fmt::format("{} is of type {}, and the module's is {}", in_quotes(name),
                                   c10::toString(source.scalar_type()),
                                   c10::toString(target.scalar_type())));
    }
    if (const auto fault = copy_fault(target, source); !fault.empty()) {
      faults.push_back(fmt::format("{} {}", in_quotes(name), fault));
    }
    copies.emplace_back(target, source);
  }
  for (const auto& [name, tensor] : tensors) {
    if (known.contains(name)) continue;
    differences.unexpected.push_back(name);
    if (strict) faults.push_back(fmt::format("{} is unexpected", in_quotes(name)));
  }
  const std::string hint = prefix_hint(differences);
  if (!faults.empty()) {
    std::string text = fmt::format("the tensors do not fit {}:", owner);
    for (const auto& fault : faults) text += "\n  " + fault;
    if (!hint.empty()) text += "\n" + hint;
    throw CheckpointError(ErrorDetails{.cause = text, .remedy = hint.empty() ? remedy : ""});
  }
  // With such names, almost nothing is loaded.
  if (!hint.empty()) libtorch::warn("load_state_dict", "[load_state_dict] " + hint);
  const at::NoGradGuard no_grad;
  separate_sources(copies);
  for (auto& [target, source] : copies) {
    target.copy_(source);
    // Every rank stores the same values.
    accept_change(target);
  }
  return differences;
}

}  // namespace lockstep
