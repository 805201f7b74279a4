// SPDX-License-Identifier: BSD-3-Clause
// Compares hashes of the ranks' descriptions, and the descriptions themselves if the hashes differ.
#include "lockstep/parallel/model_agreement.h"

#include <algorithm>
#include <cstdint>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/comm/objects.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

// FNV-1a with 64 bits: the same on every machine.
std::int64_t hash(const std::string& text) {
  std::uint64_t state = 14695981039346656037u;
  for (const char c : text) {
    state = (state ^ static_cast<unsigned char>(c)) * 1099511628211u;
  }
  return static_cast<std::int64_t>(state);
}

// Removes the first line from the text and returns it.
std::string take_line(std::string_view& text) {
  if (text.empty()) return "nothing more";
  const std::size_t end = text.find('\n');
  std::string line(text.substr(0, end));
  text.remove_prefix(end + 1);
  return line;
}

}  // namespace

std::vector<std::string> describe(std::string_view kind, std::span<const NamedTensor> tensors) {
  std::vector<std::string> lines;
  std::vector<at::Device> devices;
  for (const NamedTensor& named : tensors) {
    const at::Tensor& tensor = named.tensor;
    auto device = std::find(devices.begin(), devices.end(), tensor.device());
    if (device == devices.end()) device = devices.insert(device, tensor.device());
    std::string where;
    if (!tensor.is_cpu() || device != devices.begin()) {
      where = fmt::format(" on {} device {}",
                          c10::DeviceTypeName(tensor.device().type(), /*lower_case=*/true),
                          device - devices.begin());
    }
    lines.push_back(fmt::format("{} {}: {} [{}]{}{}", kind, named.name,
                                c10::toString(tensor.scalar_type()),
                                fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ", "),
                                where, tensor.requires_grad() ? ", requires grad" : ""));
  }
  return lines;
}

void check_agreement(ProcessGroup& group, std::string_view who,
                     const std::vector<std::string>& lines, std::string_view what) {
  std::string mine;
  for (const std::string& line : lines) mine += line + '\n';
  const at::Tensor all = at::empty({group.size()}, at::kLong);
  group.all_gather_into_tensor(all, at::full({1}, hash(mine), at::kLong)).wait();
  const std::int64_t* hashes = all.data_ptr<std::int64_t>();
  const std::int64_t* other = std::find_if(hashes, hashes + group.size(),
                                           [&](std::int64_t value) { return value != hashes[0]; });
  if (other == hashes + group.size()) return;

  const std::vector<std::string> texts = all_gather_object(std::string_view(mine), group);
  const auto other_rank = static_cast<std::size_t>(other - hashes);
  std::string_view of_first = texts.front();
  std::string_view of_other = texts[other_rank];
  std::string line_of_first;
  std::string line_of_other;
  do {
    line_of_first = take_line(of_first);
    line_of_other = take_line(of_other);
  } while (line_of_first == line_of_other);
  throw UsageError(fmt::format(
      "[{}] rank {} of {}: the ranks have different {}s. The first difference: rank 0 "
      "has {}; rank {} has {}. Build the same {}, with the same options, on every rank",
      who, group.rank(), group.size(), what, line_of_first, other_rank, line_of_other, what));
}

}  // namespace lockstep
