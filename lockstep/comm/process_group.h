// SPDX-License-Identifier: BSD-3-Clause
// Public. Ranks that run collectives together, like torch.distributed's ProcessGroup.
//
// Every rank of a group makes the same calls in the same order. A call returns at once with a Work;
// results are ready after Work::wait(), and until then the tensors must not be touched. Tensors may
// have any strides and live on any device. A list of tensors is one call; a single tensor is
// accepted for a list. Tensors of one call must not overlap, except that an output may be the input
// itself, or, in all_gather_into_tensor and reduce_scatter_tensor, one may be this rank's part of
// the other. A group may be used from several threads, as long as all ranks agree on the order.
// After an error the group is unusable, and later calls throw that error, except after a UsageError
// about this rank's own arguments, or where a function says that the group stays usable.
//
// Ranks compare each call before they use its result, also over a network; if calls differ, each
// rank throws a UsageError that names both. On nccl they do so only with
// TORCH_DISTRIBUTED_DEBUG=DETAIL.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <sys/types.h>

#include "lockstep/comm/types/group_options.h"
#include "lockstep/comm/types/work.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/membership.h"
#include "lockstep/tensor/reduce_op.h"

namespace lockstep {

class ArgumentChecks;
class Backend;
class RingAllReduce;
struct CollectiveArgs;
struct ElementRange;
struct Piece;

class ProcessGroup final : public std::enable_shared_from_this<ProcessGroup> {
 public:
  // Internal: init_process_group makes groups. The backend has joined the ranks of the membership.
  ProcessGroup(Membership membership, GroupOptions options, std::shared_ptr<Backend> backend);
  // Leaves the group. Peers see a farewell, or a failure if an exception is unwinding or being
  // handled.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return membership_.rank; }
  int size() const { return membership_.world_size; }
  int local_rank() const { return membership_.local_rank; }
  int local_world_size() const { return membership_.local_world_size; }
  // The number of the membership: in an elastic job (elastic_job.h) its generation, otherwise 0.
  int generation() const { return membership_.generation; }
  at::Device device() const { return options_.device; }
  std::chrono::milliseconds timeout() const { return options_.timeout; }

  // "shm", "thread", "self", ...
  std::string_view backend() const;
  // Why this backend was chosen: "asked for", "all ranks share this machine", ...
  const std::string& why() const { return options_.why; }
  // Where an error of code that uses the group occurs on this rank. The message of
  // UsageError(group.context("MyHook"), cause) begins with "[MyHook] rank 1 of 4: ".
  ErrorContext context(std::string_view component = {}, std::string_view operation = {}) const {
    return {.component = std::string(component),
            .operation = std::string(operation),
            .rank = rank(),
            .size = size()};
  }

  // Each tensor becomes the reduction of the ranks' tensors, with the same bits on every rank:
  // elements are combined in rank order, except in hierarchical and nccl groups. Half types are
  // accumulated in float. Means and scales need a floating or complex type; a sum of bools is "or",
  // their product "and". Complex tensors have only sums and means; at::view_as_real(tensor) has
  // all.
  Work all_reduce(at::TensorList tensors, AllReduceOptions options = {});
  Work all_reduce(at::TensorList tensors, ReduceOp op) { return all_reduce(tensors, {.op = op}); }

  // The tensors of root become the reduction; the other ranks' tensors do not change.
  Work reduce(at::TensorList tensors, int root, AllReduceOptions options = {});
  Work reduce(at::TensorList tensors, int root, ReduceOp op) {
    return reduce(tensors, root, {.op = op});
  }

  // Each tensor becomes a copy of root's tensor.
  Work broadcast(at::TensorList tensors, int root);

  // outputs[r] becomes rank r's input. All have the same number of elements and the same type.
  Work all_gather(std::vector<at::Tensor> outputs, const at::Tensor& input);

  // all_gather into one contiguous tensor, in rank order: of shape {size() * n, ...} or {size(), n,
  // ...} for inputs of shape {n, ...}.
  Work all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input);

  // On root, outputs[r] becomes rank r's input, all of one size and type; elsewhere the list is
  // empty.
  Work gather(std::vector<at::Tensor> outputs, const at::Tensor& input, int root);

  // The output becomes root's inputs[this rank]; on other ranks the list is empty.
  Work scatter(const at::Tensor& output, std::vector<at::Tensor> inputs, int root);

  // The output becomes the reduction of all ranks' inputs[this rank].
  Work reduce_scatter(const at::Tensor& output, std::vector<at::Tensor> inputs,
                      AllReduceOptions options = {});
  Work reduce_scatter(const at::Tensor& output, std::vector<at::Tensor> inputs, ReduceOp op) {
    return reduce_scatter(output, std::move(inputs), {.op = op});
  }

  // reduce_scatter from one tensor that holds the inputs for all ranks, in rank order.
  Work reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input,
                             AllReduceOptions options = {});
  Work reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input, ReduceOp op) {
    return reduce_scatter_tensor(output, input, {.op = op});
  }

  // outputs[r] becomes rank r's inputs[this rank]. Sizes may differ from pair to pair. UsageError
  // if send and receive sizes or types differ; outputs may then be partly written.
  Work all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs);

  // The n-th send from rank a to rank b matches the n-th recv of rank b from rank a; their types
  // and numbers of elements must agree. A send completes when its tensor may be changed; delivery
  // may come later. Other ranks take no part.
  Work send(const at::Tensor& tensor, int to);
  Work recv(const at::Tensor& tensor, int from);
  // Bytes that this rank has sent by send, all_reduce, all_gather and reduce_scatter, and that a
  // sharded optimizer has moved through shared memory. On every backend an all_reduce of N ranks
  // counts as 2(N-1)/N of the tensors, an all_gather or reduce_scatter as (N-1)/N of the whole.
  std::uint64_t bytes_sent() const { return bytes_sent_; }

  // Completes when every rank has called it.
  Work barrier();

  // A group of some of the ranks, numbered in the order of the list. A collective call, blocking:
  // every rank of this group makes it. Lists may differ between ranks, but all ranks in a list must
  // pass that list. Null on a rank that is not in its own list. UsageError on every rank if lists
  // contradict each other; the group stays usable. Call it from one thread per rank at a time.
  std::shared_ptr<ProcessGroup> split(const std::vector<int>& ranks);

  // An uninitialized tensor in the memory where this backend reduces fastest; on device() unless
  // the options name another device. A collective call, blocking: every rank asks for the same
  // sizes. BackendError on every rank if one of them lacks the memory, after which the group stays
  // usable; on a GPU without nccl, libtorch's error on that rank alone. The tensor may outlive the
  // group.
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options);

  // Ends the group for every rank: pending waits and later calls throw, with the reason. May be
  // called from any thread.
  void abort(const std::string& reason);

  // Internal, and subject to change in any version: what the reducer, sharded optimizers and
  // communication hooks need beyond the calls above. The types of parts of tensors are in piece.h.

  // all_reduce of a 1-D tensor, parts of which come from other buffers on this rank. Pieces are
  // contiguous, of the type of the tensor, and do not overlap. Those that lie wholly in own_share()
  // are read in place, and must not change until the Work is done; the others are copied in at
  // once. A ring copies all pieces.
  Work all_reduce_pieces(const at::Tensor& tensor, std::vector<Piece> pieces,
                         AllReduceOptions options = {});
  // all_reduce, a sum or a mean, that scales elements and rounds them to `wire_type` on their way
  // between hosts. Rounded elements are added up in float, by NCCL in 16 bits; the result is
  // rounded again. A group on one host whose ranks share memory or are GPUs rounds nothing, and a
  // hierarchical group rounds the sums of its hosts. Half-precision elements are not rounded; sums
  // of hosts travel in the same type.
  Work all_reduce_compressed(const at::Tensor& tensor, at::ScalarType wire_type,
                             AllReduceOptions options);
  // The elements of the tensor of this rank that no other rank reads in an all_reduce: a part of a
  // large tensor that all ranks can reach; none in groups that share no memory.
  ElementRange own_share(const at::Tensor& tensor) const;
  // Addresses in this process, by rank, of the tensors of all ranks that the same call of empty()
  // made; this process can read and write them. Like the symmetric memory of PyTorch. They stay
  // valid as long as the tensor of this rank exists, even if the others are gone. Empty in groups
  // that share no memory between processes.
  std::vector<std::byte*> symmetric_memory(const at::Tensor& tensor) const;
  // Zeroed memory of this host that the processes of all ranks map: what one of them stores there,
  // all of them have. Otherwise like empty(). In a group of one, memory of its process. Undefined
  // on every rank, without a call, in groups that share no memory between processes. For calls of
  // the group it is ordinary memory.
  at::Tensor common_memory(at::IntArrayRef sizes, const at::TensorOptions& options);
  // In a hierarchical group, the ranks of each host in ascending order, the same on every rank;
  // hosts are in the order of their first ranks. A group of ranks of one host that is split off has
  // common_memory(). Empty in other groups.
  std::vector<std::vector<int>> hosts() const;
  // Whether a rank stores nothing in such memory any more: its process has ended, or it has
  // destroyed the group. Always false in groups that share no memory between processes.
  bool has_ended(int rank) const;
  // Adds to bytes_sent() what the caller has moved through symmetric memory.
  void count_sent(std::int64_t bytes) { bytes_sent_ += static_cast<std::uint64_t>(bytes); }
  // The backend that init_process_group() was asked for, maybe "auto".
  const std::string& requested_backend() const { return options_.requested_backend; }
  // The number of calls that this rank has made, except calls of empty() and common_memory().
  std::uint64_t calls_made() const { return calls_made_; }

 private:
  ArgumentChecks checks_of(std::string_view operation) const;
  void leave_if_failing() noexcept;
  Work start(const CollectiveArgs& args);
  Work start_all_reduce(const CollectiveArgs& args);
  Work start_all_gather(at::TensorList outputs, const at::Tensor& input);
  Work start_reduce_scatter(const at::Tensor& output, at::TensorList inputs,
                            const AllReduceOptions& options);
  Work start_ring(const CollectiveArgs& args);

  Membership membership_;
  GroupOptions options_;
  std::shared_ptr<Backend> backend_;
  const pid_t owner_;  // a forked child has the object too
  // std::uncaught_exceptions() when the group was formed.
  const int exceptions_in_flight_;
  const bool in_handler_;
  std::atomic<std::uint64_t> calls_made_ = 0;
  std::atomic<std::uint64_t> bytes_sent_ = 0;
  std::mutex ring_mutex_;
  std::weak_ptr<RingAllReduce> last_ring_;
  int splits_ = 0;
};

}  // namespace lockstep
