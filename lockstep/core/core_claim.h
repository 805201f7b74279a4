// SPDX-License-Identifier: BSD-3-Clause
// Which job may pin its ranks: two jobs that pin to the same cores would share them, however many
// stand idle beside them.
#pragma once

#include <vector>

#include "lockstep/core/unique_fd.h"

namespace lockstep {

// Holds cores of this machine until it is destroyed, or the process ends in whatever way. Claims
// are seen by all processes of one network namespace (they are abstract Unix sockets, which leave
// nothing behind), so containers with networks of their own do not see each other's. That is why
// only a job that would use every core it is allowed to use should claim and pin: two of those
// share cores with or without pinning.
class CoreClaim {
 public:
  // Claims all of the cores, or none if one of them is taken.
  explicit CoreClaim(const std::vector<int>& cores);

  bool held() const { return !sockets_.empty(); }

 private:
  std::vector<UniqueFd> sockets_;
};

}  // namespace lockstep
