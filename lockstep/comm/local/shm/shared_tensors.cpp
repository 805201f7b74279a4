// SPDX-License-Identifier: BSD-3-Clause
// Keeps the mappings of shared tensors, and finds tensors by address.
#include "lockstep/comm/local/shm/shared_tensors.h"

#include <algorithm>

#include <ATen/ops/from_blob.h>

namespace lockstep::shm {

at::Tensor SharedTensors::adopt(std::uint64_t segment, std::vector<Mapping> mappings, int rank,
                                at::IntArrayRef sizes, const at::TensorOptions& options) {
  void* data = mappings[rank].data();
  {
    const std::lock_guard lock(mutex_);
    entries_.push_back({segment, rank, std::move(mappings)});
  }
  return at::from_blob(
      data, sizes, [tensors = shared_from_this(), segment](void*) { tensors->release(segment); },
      options);
}

local::Location SharedTensors::location_of(const void* data, std::int64_t bytes) const {
  const auto* address = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  for (const auto& entry : entries_) {
    const Mapping& own = entry.mappings[entry.rank];
    if (address < own.data() || address + bytes > own.data() + own.size()) continue;
    return {entry.segment, address - own.data()};
  }
  return {};
}

std::byte* SharedTensors::address(int rank, const local::Location& location) const {
  const std::lock_guard lock(mutex_);
  for (const auto& entry : entries_) {
    if (entry.segment == location.segment) return entry.mappings[rank].data() + location.offset;
  }
  return nullptr;
}

void SharedTensors::release(std::uint64_t segment) {
  Entry gone;
  const std::lock_guard lock(mutex_);
  const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& e) { return e.segment == segment; });
  gone = std::move(*entry);
  entries_.erase(entry);
}

}  // namespace lockstep::shm
