// SPDX-License-Identifier: BSD-3-Clause
// Joins the processes of one machine, which map each other's memory, into a group and its
// subgroups.
#include <algorithm>

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include "lockstep/comm/core/make_backends.h"
#include "lockstep/comm/local/local_backend.h"
#include "lockstep/comm/local/shm/peer_mesh.h"
#include "lockstep/comm/local/shm/shared_memory.h"
#include "lockstep/core/error.h"
#include "lockstep/core/process/cpu.h"

namespace lockstep::shm {
namespace {

using local::ControlBlock;
using local::Location;

// Maps the memory of every rank.
std::vector<Mapping> exchange_memory(PeerMesh& mesh, UniqueFd own, std::size_t bytes,
                                     const Deadline& deadline) {
  std::vector<UniqueFd> fds = mesh.exchange(own.get(), deadline);
  fds[mesh.rank()] = std::move(own);
  std::vector<Mapping> mappings;
  for (const auto& fd : fds) mappings.emplace_back(fd.get(), bytes);
  return mappings;
}

UniqueFd make_control_block(int ranks) {
  UniqueFd memory = make_memory(ControlBlock::bytes(ranks), ranks);
  const Mapping mapping(memory.get(), ControlBlock::bytes(ranks));
  auto* block = reinterpret_cast<ControlBlock*>(mapping.data());
  for (int core : allowed_cores()) CPU_SET(core, &block->cores);
  return memory;
}

class ShmPeers final : public local::Peers {
 public:
  ShmPeers(const Membership& membership, const Deadline& deadline)
      : Peers(membership.rank, "shm"),
        job_ranks_(membership.job_ranks),
        mesh_(membership, deadline),
        mappings_(exchange_memory(mesh_, make_control_block(mesh_.size()),
                                  ControlBlock::bytes(mesh_.size()), deadline)) {
    std::vector<ControlBlock*> blocks;
    for (const auto& mapping : mappings_) {
      blocks.push_back(reinterpret_cast<ControlBlock*>(mapping.data()));
    }
    set_blocks(std::move(blocks));
  }

  std::vector<int> pids() const override {
    std::vector<int> pids;
    for (int rank = 0; rank < mesh_.size(); ++rank) pids.push_back(mesh_.pid(rank));
    return pids;
  }
  std::string name(int rank) const override {
    const int job_rank = job_ranks_.empty() ? rank : job_ranks_[static_cast<std::size_t>(rank)];
    if (job_rank == rank) return fmt::format("rank {} (pid {})", rank, mesh_.pid(rank));
    return fmt::format("rank {} (rank {} of the job, pid {})", rank, job_rank, mesh_.pid(rank));
  }
  State state(int rank) const override { return mesh_.state(rank); }
  void leave_failing() override { mesh_.leave_failing(); }

  Location location_of(const void* data, std::int64_t bytes) const override {
    return tensors_->location_of(data, bytes);
  }
  std::byte* address(int rank, const Location& location) const override {
    return tensors_->address(rank, location);
  }
  std::vector<std::byte*> symmetric_memory(const void* data, std::int64_t bytes) const override {
    const Location location = location_of(data, bytes);
    std::vector<std::byte*> addresses;
    for (int rank = 0; location.segment != 0 && rank < size(); ++rank) {
      addresses.push_back(address(rank, location));
    }
    return addresses;
  }

  std::unique_ptr<local::NewTensor> new_tensor(at::IntArrayRef sizes,
                                               const at::TensorOptions& options) override {
    return std::make_unique<NewTensor>(*this, sizes, options);
  }
  std::unique_ptr<local::NewTensor> new_common_tensor(at::IntArrayRef sizes,
                                                      const at::TensorOptions& options) override {
    return std::make_unique<NewCommonTensor>(*this, sizes, options);
  }

 private:
  class NewMemory : public local::NewTensor {
   protected:
    NewMemory(ShmPeers& peers, at::IntArrayRef sizes, const at::TensorOptions& options)
        : peers_(peers), sizes_(sizes.vec()), options_(options), bytes_(bytes_of(sizes, options)) {}

    ShmPeers& peers_;
    std::vector<std::int64_t> sizes_;
    at::TensorOptions options_;
    std::size_t bytes_;
    UniqueFd memory_;
  };

  class NewTensor final : public NewMemory {
   public:
    NewTensor(ShmPeers& peers, at::IntArrayRef sizes, const at::TensorOptions& options)
        : NewMemory(peers, sizes, options) {
      memory_ = make_memory(bytes_, peers.size());
    }

    at::Tensor share(std::uint64_t segment, const Deadline& deadline) override {
      auto mappings = exchange_memory(peers_.mesh_, std::move(memory_), bytes_, deadline);
      return peers_.tensors_->adopt(segment, std::move(mappings), peers_.rank(), sizes_, options_);
    }
  };

  // Rank 0 has the memory; the other ranks send a page that nobody maps.
  class NewCommonTensor final : public NewMemory {
   public:
    NewCommonTensor(ShmPeers& peers, at::IntArrayRef sizes, const at::TensorOptions& options)
        : NewMemory(peers, sizes, options) {
      memory_ = make_memory(peers.rank() == 0 ? bytes_ : 1, 1);
    }

    at::Tensor share(std::uint64_t /*segment*/, const Deadline& deadline) override {
      std::vector<UniqueFd> fds = peers_.mesh_.exchange(memory_.get(), deadline);
      const int fd = peers_.rank() == 0 ? memory_.get() : fds[0].get();
      const auto mapping = std::make_shared<Mapping>(fd, bytes_);
      return at::from_blob(
          mapping->data(), sizes_, [mapping](void*) {}, options_);
    }
  };

  static std::size_t bytes_of(at::IntArrayRef sizes, const at::TensorOptions& options) {
    const auto elements = static_cast<std::size_t>(c10::multiply_integers(sizes));
    return std::max<std::size_t>(1, elements * options.dtype().itemsize());
  }

  const std::vector<int> job_ranks_;  // as in Membership
  PeerMesh mesh_;
  std::shared_ptr<SharedTensors> tensors_ = std::make_shared<SharedTensors>();
  std::vector<Mapping> mappings_;
};

// Blocks until all ranks have joined; see PeerMesh for the errors.
std::unique_ptr<local::Peers> join(const Membership& membership, const Deadline& deadline) try {
  return std::make_unique<ShmPeers>(membership, deadline);
} catch (const StoreLost&) {
  throw;
} catch (const Error&) {
  rethrow_within({.component = "shm",
                  .operation = "joining",
                  .rank = membership.rank,
                  .size = membership.world_size});
}

std::shared_ptr<Backend> make_subgroup(const std::string& /*name*/, const Membership& membership,
                                       const GroupOptions& options) {
  if (membership.world_size == 1) return make_self_backend(membership, options);
  return make_shm_backend(membership, options);
}

}  // namespace
}  // namespace lockstep::shm

namespace lockstep {

std::shared_ptr<Backend> make_shm_backend(const Membership& membership, const GroupOptions& options,
                                          const std::string& /*name*/) {
  auto peers = shm::join(membership, Deadline::after(options.timeout));
  return local::make_local_backend(std::move(peers), membership, options, shm::make_subgroup);
}

}  // namespace lockstep
