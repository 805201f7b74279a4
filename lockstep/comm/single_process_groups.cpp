// SPDX-License-Identifier: BSD-3-Clause
// Makes groups whose ranks are this process or its threads.
#include "lockstep/comm/single_process_groups.h"

#include <fmt/format.h>

#include "lockstep/comm/group_warnings.h"
#include "lockstep/comm/local/thread/thread_backend.h"
#include "lockstep/comm/self/self_backend.h"
#include "lockstep/core/error.h"

namespace lockstep {

std::shared_ptr<ProcessGroup> make_self_group(GroupOptions options) {
  const Membership alone;
  auto backend = make_self_backend(alone, options);
  return std::make_shared<ProcessGroup>(alone, std::move(options), std::move(backend));
}

std::vector<std::shared_ptr<ProcessGroup>> make_thread_groups(int size, GroupOptions options) {
  if (size < 1) {
    throw UsageError(fmt::format("make_thread_groups: {} ranks; give at least 1", size));
  }
  warn_of_oversubscription(size);
  const auto join = join_threads(size);
  std::vector<std::shared_ptr<ProcessGroup>> groups;
  for (int rank = 0; rank < size; ++rank) {
    const Membership membership{.rank = rank,
                                .world_size = size,
                                .local_rank = rank,
                                .local_world_size = size,
                                .generation = 0,
                                .store = nullptr};
    groups.push_back(
        std::make_shared<ProcessGroup>(membership, options, join(membership, options)));
  }
  return groups;
}

}  // namespace lockstep
