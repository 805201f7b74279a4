// SPDX-License-Identifier: BSD-3-Clause
// Access to a group that the reducer, the optimizers, the communication hooks and tests need, and
// users do not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/piece.h"

namespace lockstep {

class GroupAccess {
 public:
  explicit GroupAccess(ProcessGroup& group) : group_(group) {}

  // How many calls this rank has made, except those of empty().
  std::uint64_t calls_made() const { return group_.calls_made_; }

  // all_reduce of a 1-D tensor, parts of which come from other buffers on this rank. Pieces are
  // contiguous, of the tensor's type, and do not overlap. Those that lie wholly in own_share() are
  // read in place, and must not change until the Work is done; the others are copied in at once. A
  // ring copies all pieces.
  Work all_reduce_pieces(const at::Tensor& tensor, std::vector<Piece> pieces,
                         AllReduceOptions options = {});
  // all_reduce, a sum or a mean, that scales elements and rounds them to `wire_type` on their way
  // between hosts. Rounded elements are added up in float, by NCCL in 16 bits; the result is
  // rounded again. A group on one host whose ranks share memory or are GPUs rounds nothing, and a
  // hierarchical group rounds the sums of its hosts. Elements of half types keep their type, in
  // which a hierarchical group also sends the sums of its hosts.
  Work all_reduce_compressed(const at::Tensor& tensor, at::ScalarType wire_type,
                             AllReduceOptions options);
  // The elements of this rank's tensor that no other rank reads in an all_reduce: a part of a large
  // tensor that all ranks can reach; none in groups that share no memory.
  ElementRange own_share(const at::Tensor& tensor) const;
  // Addresses in this process, by rank, of the tensors of all ranks that the same call of empty()
  // made; this process can read and write them. Like PyTorch's symmetric memory. They stay valid as
  // long as this rank's tensor exists, even if the others are gone. Empty in groups that share no
  // memory between processes.
  std::vector<std::byte*> symmetric_memory(const at::Tensor& tensor) const;
  // Adds to bytes_sent() what the caller has moved through symmetric memory.
  void count_sent(std::int64_t bytes) { group_.bytes_sent_ += static_cast<std::uint64_t>(bytes); }

 private:
  ProcessGroup& group_;
};

}  // namespace lockstep
