// SPDX-License-Identifier: BSD-3-Clause
// The makers of all backends. Each is defined in its backend's folder; backends.h has the table of
// those that can be asked for by name.
//
// A maker blocks until all ranks of the membership have joined, for at most options.timeout. It
// throws what ends the wait: TimeoutError or PeerLost, with the ranks that are missing. Messages
// call a backend `name` where the maker has this parameter.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/comm/core/backend.h"

namespace lockstep {

// A group of one rank: every result is the rank's own input, scaled.
std::shared_ptr<Backend> make_self_backend(const Membership& membership,
                                           const GroupOptions& options);

// Ranks on one machine, joined through memory that all of them map. The backend's name is "shm"
// whatever `name` is.
std::shared_ptr<Backend> make_shm_backend(const Membership& membership, const GroupOptions& options,
                                          const std::string& name = "shm");

// Ranks that are threads of one process. They reduce tensors in place, whatever allocated them.
// Returns a function that joins one of `size` ranks to the others. Each rank calls it once; it does
// not block.
std::function<std::shared_ptr<Backend>(const Membership& membership, const GroupOptions& options)>
join_threads(int size);

// Ranks on one or more machines, joined by libtorch's own Gloo over TCP.
std::shared_ptr<Backend> make_gloo_backend(const Membership& membership,
                                           const GroupOptions& options, const std::string& name);

// Ranks that an MPI launcher started (mpirun, srun), joined by the MPI library that Lockstep was
// built with. BackendError if this process is not a rank of MPI.
std::shared_ptr<Backend> make_mpi_backend(const Membership& membership, const GroupOptions& options,
                                          const std::string& name);

// Ranks with a GPU each, joined by NCCL. As in PyTorch, waiting for a Work makes the current stream
// wait, and the thread continues. A thread of the group notices a peer that dies or does not arrive
// meanwhile, and ends NCCL's work; the next call on the group throws the error. With
// TORCH_NCCL_BLOCKING_WAIT=1 the thread waits, and the wait throws; the same holds for results in
// host memory. Make another call, such as a barrier, before work that must not build on a failed
// call, such as a checkpoint: otherwise nothing reports a failure of the last call.
//
// BackendError without NCCL. UsageError unless options.device is a GPU; no other rank of the group
// may have the same one.
std::shared_ptr<Backend> make_nccl_backend(const Membership& membership,
                                           const GroupOptions& options, const std::string& name);
// "2.27.5"; BackendError if NCCL cannot be loaded.
std::string nccl_version();

// Joins the ranks of different hosts: make_gloo_backend or another.
using JoinHosts = std::shared_ptr<Backend> (*)(const Membership& membership,
                                               const GroupOptions& options,
                                               const std::string& name);

// Ranks on several hosts. An all-reduce has three phases. Within each host, the ranks reduce the
// tensor in shared memory, one slice per rank. Each rank then reduces its slice with its peers on
// the other hosts, which sends 2 (H - 1) / H of the tensor from each of H hosts. Finally, the ranks
// of each host share the slices. Broadcasts go the same way. If all hosts have the same number of
// ranks, so do all-gather and reduce-scatter (hierarchical/parts_of_ranks.h). All other calls use a
// group of all ranks.
//
// Sums are taken within the hosts first. Every rank has the same bits, but not the bits of a group
// that adds in rank order. `host` identifies the host, as this_host() does.
std::shared_ptr<Backend> make_hierarchical_backend(const Membership& membership,
                                                   const GroupOptions& options,
                                                   const std::string& host, JoinHosts join_hosts);

}  // namespace lockstep
