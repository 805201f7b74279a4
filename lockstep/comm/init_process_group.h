// SPDX-License-Identifier: BSD-3-Clause
// Public. How a program gets a group: of the processes of a job, of this process alone, or of its
// threads.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/rendezvous/elastic_job.h"

namespace lockstep {

struct InitOptions {
  // One of backends().
  std::string backend = "auto";
  // "env://" reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, else the variables of
  // mpirun and srun; with none of them, the process is a group of one, and a world_size of 1 in
  // these options says that this is intended. "tcp://host:port" (rank 0 listens there) and
  // "file:///path" (a file that does not exist yet) take rank and world_size from these options,
  // else from RANK and WORLD_SIZE.
  std::string init_method = "env://";
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  // Limits joining, and every wait of the group.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // Where this rank's tensors live. By default cuda:LOCAL_RANK if there is a GPU, else cpu.
  std::optional<at::Device> device = {};
};

// Blocks until all ranks have joined. UsageError if options or environment are contradictory or
// conflict with those of the other ranks; PeerLost names a rank that joined and died, TimeoutError
// the ranks that did not join; BackendError if the backend is not built in or its library cannot be
// loaded, or the system refuses what it needs. TORCH_WARN, once each, for an unrequested group
// of one on a terminal, for more ranks on a machine than cores, and if a group of one on CPU, whose
// environment says nothing about OpenMP, finds the cores in use: libtorch then gets only as many
// threads as cores are idle (docs/modes.md, Threads). Destroying the group leaves it and never
// hangs; there is no destroy_process_group.
std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options = {});

// The group of one generation of an elastic job, of which this process must be a member. Takes the
// backend, timeout and device from the options. Errors as above; PeerLost also as soon as a newer
// generation is open.
//
// The function above, with env://, gives a founding member the group of the job's newest
// generation, and a newcomer that has not joined yet a group of its own, so that both can run the
// same program up to the first step.
std::shared_ptr<ProcessGroup> init_process_group(const ElasticJob& job,
                                                 const Generation& generation,
                                                 const InitOptions& options = {});

// The names of the backends: docs/launchers.md describes them. "auto" takes the fastest backend
// that can join these ranks. Asking for a backend that is not built in throws an error that says
// how to get it.
const std::vector<std::string>& backends();

// A group of this process alone.
std::shared_ptr<ProcessGroup> make_self_group(GroupOptions options = {});

// One group object per rank, in rank order, each for use by one thread. A rank leaves the group
// when its object is destroyed. UsageError if size is less than 1. TORCH_WARN, once, if it exceeds
// the cores.
std::vector<std::shared_ptr<ProcessGroup>> make_thread_groups(int size, GroupOptions options = {});

}  // namespace lockstep
