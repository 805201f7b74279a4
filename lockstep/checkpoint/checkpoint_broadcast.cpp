// SPDX-License-Identifier: BSD-3-Clause
// Tells other ranks what a checkpoint consists of, and sends them its tensors.
#include "lockstep/checkpoint/checkpoint_broadcast.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include "lockstep/checkpoint/checkpoint_snapshot.h"
#include "lockstep/checkpoint/sha256.h"
#include "lockstep/checkpoint/tensor_file/tensor_bytes.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/objects.h"
#include "lockstep/core/error.h"
#include "lockstep/parallel/errors.h"
#include "lockstep/parallel/model_agreement.h"

namespace lockstep {
namespace {

using nlohmann::json;

// The names and elements of all tensors that are the same on every rank.
std::string hash_of_tensors(const StoredCheckpoint& stored) {
  Sha256 hash;
  for (const auto& [file, tensors] : stored.tensors) {
    if (is_of_one_rank(file)) continue;
    for (const auto& [name, tensor] : tensors) {
      hash.add(std::as_bytes(std::span(name)));
      hash.add(bytes_of(in_index_order(tensor)));
    }
  }
  return hash.finish();
}

// Compares the hashes of the ranks that have a state. With three or more, most of them tell which
// one has been damaged.
void require_one_hash(const std::vector<std::string>& hashes, std::int64_t step,
                      const ProcessGroup& group) {
  std::map<std::string_view, std::vector<int>> ranks_of;
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::string& hash = hashes[static_cast<std::size_t>(rank)];
    if (!hash.empty()) ranks_of[hash].push_back(rank);
  }
  if (ranks_of.size() <= 1) return;
  const auto more_ranks = [](const auto& left, const auto& right) {
    const std::vector<int>& a = left.second;
    const std::vector<int>& b = right.second;
    return a.size() < b.size() || (a.size() == b.size() && a.front() > b.front());
  };
  const std::vector<int>& most = std::ranges::max_element(ranks_of, more_ranks)->second;
  std::vector<int> others;
  for (const auto& [hash, ranks] : ranks_of) {
    if (ranks != most) others.insert(others.end(), ranks.begin(), ranks.end());
  }
  std::ranges::sort(others);
  throw OutOfSync(ErrorDetails{
      .cause =
          fmt::format("after step {}, {} ha{} other weights, buffers or optimizer states than "
                      "{}, so none are given to others",
                      step, rank_list(others), others.size() == 1 ? "s" : "ve", rank_list(most)),
      .remedy = "resume from a checkpoint",
      .peer = others.front(),
      .contexts = {group.context("share_state")}});
}

}  // namespace

json outline_of(const StoredCheckpoint& stored) {
  json files = json::object();
  for (const auto& [file, tensors] : stored.tensors) {
    json& list = files[file] = json::array();
    for (const auto& [name, tensor] : tensors) {
      list.push_back({name, find_element_type(tensor.scalar_type())->dtype, tensor.sizes().vec()});
    }
  }
  return {{"manifest", stored.manifest}, {"files", files}};
}

StoredCheckpoint with_empty_tensors(const json& outline) {
  StoredCheckpoint stored{.manifest = outline.at("manifest"), .tensors = {}};
  for (const auto& [file, list] : outline.at("files").items()) {
    std::vector<NamedTensor>& tensors = stored.tensors[file];
    for (const json& entry : list) {
      const ElementType& type = *find_dtype(entry.at(1).get<std::string>());
      tensors.push_back({entry.at(0).get<std::string>(),
                         at::empty(entry.at(2).get<std::vector<std::int64_t>>(), *type.type)});
    }
  }
  return stored;
}

void broadcast_tensors(const StoredCheckpoint& stored, int root, ProcessGroup& group) {
  for (const auto& [file, tensors] : stored.tensors) {
    for (const auto& [name, tensor] : tensors) {
      if (tensor.numel() > 0) group.broadcast(tensor, root).wait();
    }
  }
}

CheckpointPosition share_state(const CheckpointContents& contents,
                               const CheckpointPosition& position, int donor, bool lacks,
                               ProcessGroup& group) {
  const auto self = make_self_group({.device = group.device()});
  const bool gives = group.rank() == donor;
  StoredCheckpoint stored;
  std::string hash;
  if (!lacks) {
    stored = in_memory(contents, position, *self);
    hash = hash_of_tensors(stored);
  }
  const std::vector<std::string> hashes = all_gather_object(std::string_view(hash), group);
  require_one_hash(hashes, position.step, group);
  const json outline = broadcast_object(gives ? outline_of(stored) : json(), donor, group);
  if (lacks) stored = with_empty_tensors(outline);
  for (const auto& [file, tensors] : stored.tensors) {
    for (const auto& [name, tensor] : tensors) {
      const at::Tensor place = gives || lacks ? tensor : at::empty_like(tensor);
      if (place.numel() > 0) group.broadcast(place, donor).wait();
    }
  }
  if (!lacks) return position;
  if (hash_of_tensors(stored) != hashes[static_cast<std::size_t>(donor)]) {
    throw CheckpointError(ErrorDetails{
        .cause = fmt::format("the state has not arrived from rank {} as it was there", donor),
        .remedy = "check the memory of this machine",
        .peer = donor,
        .contexts = {group.context("share_state")}});
  }
  prepare_restore(stored, contents, *self).complete();
  return position_in(stored);
}

}  // namespace lockstep
