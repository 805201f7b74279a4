// SPDX-License-Identifier: BSD-3-Clause
// Checks for verbs that start their own ranks and must not be ranks themselves.
#pragma once

#include <string_view>

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/rendezvous/rendezvous.h"

namespace lockstep::cli {

// The number of ranks that a launcher has started, with this process; 1 without a launcher.
inline int ranks_of_launcher() {
  const auto member = membership_in_environment();
  return member ? member->world_size : 1;
}

// UsageError if a launcher has started this process as one of several.
inline void require_no_launcher(std::string_view verb) {
  const int started = ranks_of_launcher();
  if (started <= 1) return;
  throw UsageError(
      fmt::format("a launcher has started this process as one of {} ranks, but {} starts its own "
                  "ranks; run it once, outside any launcher",
                  started, verb));
}

}  // namespace lockstep::cli
