// SPDX-License-Identifier: BSD-3-Clause
// Exchanges hashes of the descriptions, and the descriptions themselves if the hashes differ.
// Tensors are hashed at memory speed.
#include "lockstep/parallel/model_agreement.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/comm/objects.h"
#include "lockstep/core/error.h"
#include "lockstep/tensor/device_copies.h"

namespace lockstep {
namespace {

// FNV-1a with 64 bits: the same on every machine.
std::int64_t hash_of_text(const std::string& text) {
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

// Fractional parts of the golden ratio and of the square root of 3; odd, so that products lose
// nothing.
constexpr std::uint64_t kOne = 0x9e37'79b9'7f4a'7c15;
constexpr std::uint64_t kOther = 0xbb67'ae85'84ca'a73b;

// From one state, different words lead to different states, so a difference in one word is never
// lost. Multiplication carries bits only upwards, so the shift between the two products brings high
// bits, such as signs, down: otherwise flipping two of them in different words could cancel out.
std::uint64_t mix(std::uint64_t state, std::uint64_t word) {
  const std::uint64_t spread = (state ^ word) * kOne;
  return (spread ^ spread >> 32) * kOther;
}

// Several states take the words in turn: the processor computes their products in parallel, while
// products of one state depend on each other.
std::uint64_t hash_of(const std::byte* bytes, std::size_t count) {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  std::array<std::uint64_t, 8> states{1, 2, 3, 4, 5, 6, 7, 8};
  const auto take = [&](std::size_t position, std::size_t state, std::size_t length) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + position, length);
    states[state] = mix(states[state], word);
  };
  std::size_t position = 0;
  for (; position + states.size() * kWord <= count; position += states.size() * kWord) {
    for (std::size_t i = 0; i < states.size(); ++i) take(position + i * kWord, i, kWord);
  }
  for (std::size_t i = 0; position < count; position += kWord, ++i) {
    take(position, i, std::min(kWord, count - position));
  }
  std::uint64_t hash = count;
  for (const std::uint64_t state : states) hash = mix(hash, state);
  return mix(hash, 0);
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
  group.all_gather_into_tensor(all, at::full({1}, hash_of_text(mine), at::kLong)).wait();
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
  throw UsageError(
      group.context(who),
      fmt::format(
          "the ranks have different {}s. The first difference: rank 0 has {}; rank {} has {}", what,
          line_of_first, other_rank, line_of_other),
      fmt::format("build the same {}, with the same options, on every rank", what));
}

std::uint64_t tensor_hash(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided) {
    const at::Tensor plain = tensor.detach();
    const at::Tensor sparse = (plain.is_sparse() ? plain : plain.to_sparse()).coalesce();
    return mix(tensor_hash(sparse.indices()), tensor_hash(sparse.values()));
  }
  const at::Tensor plain = on_host(tensor);
  const std::uint64_t hash = hash_of(static_cast<const std::byte*>(plain.data_ptr()),
                                     static_cast<std::size_t>(plain.nbytes()));
  return hash == 0 ? 1 : hash;
}

std::string rank_list(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  return fmt::format("ranks {} and {}", fmt::join(ranks.begin(), ranks.end() - 1, ", "),
                     ranks.back());
}

}  // namespace lockstep
