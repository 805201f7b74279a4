// SPDX-License-Identifier: BSD-3-Clause
// Moves and sums tensors on a GPU by NCCL. Tensors in host memory, such as descriptions of calls,
// go through a copy on the GPU.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/remote/joining.h"
#include "lockstep/comm/remote/transport.h"
#include "lockstep/core/deadline.h"
#include "lockstep/rendezvous/membership.h"
#include "lockstep/tensor/reduce_op.h"

namespace lockstep::nccl {

// Collectives have one communicator. Messages have one for each sender, receiver and tag, made at
// their first message, since NCCL's messages would otherwise wait for each other.
class NcclTransport : public remote::Transport {
 public:
  using Transmission = remote::Transmission;

  // The sum is multiplied by the scale. Means and scales need a floating type.
  virtual std::unique_ptr<Transmission> all_reduce(at::Tensor tensor, ReduceOp op,
                                                   double scale) = 0;
  // Root's tensor becomes the reduction.
  virtual std::unique_ptr<Transmission> reduce(at::Tensor tensor, int root, ReduceOp op,
                                               double scale) = 0;
  // Rank r's result becomes the reduction of the ranks' tensors[r].
  virtual std::unique_ptr<Transmission> reduce_scatter(std::vector<at::Tensor> tensors,
                                                       at::Tensor result, ReduceOp op,
                                                       double scale) = 0;
  // Rank r gets outgoing[r], and incoming[r] comes from it. An undefined tensor means no transfer.
  virtual std::unique_ptr<Transmission> exchange_tensors(std::vector<at::Tensor> outgoing,
                                                         std::vector<at::Tensor> incoming) = 0;
};

// UsageError if NCCL has no such type.
void check_nccl_type(at::ScalarType type);

// Returns when the ranks are connected. BackendError with NCCL's message, TimeoutError at the
// deadline, and what joining.check() throws.
std::unique_ptr<NcclTransport> make_nccl_transport(const Membership& membership, at::Device device,
                                                   remote::Joining& joining,
                                                   const Deadline& deadline);

}  // namespace lockstep::nccl
