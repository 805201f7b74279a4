// SPDX-License-Identifier: BSD-3-Clause
// Verbs that start their own ranks must not be ranks themselves.
#pragma once

#include <string_view>

#include <fmt/format.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"

namespace lockstep::cli {

// UsageError if a launcher has started this process as one of several.
inline void require_no_launcher(std::string_view verb) {
  const int started = environment_int("WORLD_SIZE").value_or(1);
  if (started <= 1) return;
  throw UsageError(fmt::format(
      "WORLD_SIZE={}: {} starts its own ranks; run it once, outside any launcher", started, verb));
}

}  // namespace lockstep::cli
