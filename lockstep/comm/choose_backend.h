// SPDX-License-Identifier: BSD-3-Clause
// Which backend joins the ranks.
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Where the ranks of a group are.
struct Placement {
  int ranks = 1;
  int hosts = 1;
  // Each has one that no other rank has, and NCCL can be loaded.
  bool gpu_for_each_rank = false;
  // The backend that joins hosts: gloo, or mpi where there is no gloo.
  std::string between_hosts = "gloo";
};

// The one that this Lockstep was built with.
std::string backend_between_hosts();

struct Choice {
  std::string backend;
  // For people: "all ranks share this machine".
  std::string why;
};

// What "auto" takes.
Choice choose_backend(const Placement& placement);

// A backend of backends(). A collective call, blocking. "auto" has the ranks tell each other where
// they are.
std::shared_ptr<ProcessGroup> make_group(std::string backend, Membership member,
                                         GroupOptions options);

}  // namespace lockstep
