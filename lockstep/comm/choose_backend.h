// SPDX-License-Identifier: BSD-3-Clause
// Chooses the backend that joins the ranks.
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Where the ranks of a group are.
struct Placement {
  int ranks = 1;
  int hosts = 1;
  // Each rank has a GPU that no other rank has, and NCCL can be loaded.
  bool gpu_for_each_rank = false;
  // The backend that joins hosts: gloo, or mpi if gloo is not built in.
  std::string between_hosts = "gloo";
};

// The backend that joins hosts in this build.
std::string backend_between_hosts();

struct Choice {
  std::string backend;
  // The reason, as text: "all ranks share this machine".
  std::string why;
};

// The backend that "auto" stands for.
Choice choose_backend(const Placement& placement);

// `backend` is one of backends(). A blocking collective call. With "auto", the ranks tell each
// other where they are.
std::shared_ptr<ProcessGroup> make_group(std::string backend, Membership member,
                                         GroupOptions options);

}  // namespace lockstep
