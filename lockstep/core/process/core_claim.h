// SPDX-License-Identifier: BSD-3-Clause
// Decides which job may pin its ranks: two jobs pinned to the same cores would share them even
// while other cores are idle.
#pragma once

#include <vector>

#include "lockstep/core/unique_fd.h"

namespace lockstep {

// Holds cores of this machine until it is destroyed or the process ends. A claim is an abstract
// Unix socket: it leaves nothing behind, and all processes of one network namespace see it.
// Containers with their own networks do not see each other's claims. So only a job that would use
// all of its allowed cores should claim and pin: two such jobs share cores with or without pinning.
class CoreClaim {
 public:
  // Claims all of the cores, or none if one is taken.
  explicit CoreClaim(const std::vector<int>& cores);

  bool held() const { return !sockets_.empty(); }

 private:
  std::vector<UniqueFd> sockets_;
};

}  // namespace lockstep
