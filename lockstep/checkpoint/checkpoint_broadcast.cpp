// SPDX-License-Identifier: BSD-3-Clause
// Tells other ranks what a checkpoint consists of, and sends them its tensors.
#include "lockstep/checkpoint/checkpoint_broadcast.h"

#include <cstddef>
#include <cstdint>
#include <span>
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
  const std::string& expected = hashes[static_cast<std::size_t>(donor)];
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::string& other = hashes[static_cast<std::size_t>(rank)];
    if (other.empty() || other == expected) continue;
    throw OutOfSync(ErrorDetails{
        .cause = fmt::format("ranks {} and {} have different weights, buffers or optimizer states "
                             "after step {}, so neither is given to others",
                             donor, rank, position.step),
        .remedy = "resume from a checkpoint",
        .peer = rank,
        .contexts = {group.context("share_state")}});
  }
  const json outline = broadcast_object(gives ? outline_of(stored) : json(), donor, group);
  if (lacks) stored = with_empty_tensors(outline);
  for (const auto& [file, tensors] : stored.tensors) {
    for (const auto& [name, tensor] : tensors) {
      const at::Tensor place = gives || lacks ? tensor : at::empty_like(tensor);
      if (place.numel() > 0) group.broadcast(place, donor).wait();
    }
  }
  if (!lacks) return position;
  if (hash_of_tensors(stored) != expected) {
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
