// SPDX-License-Identifier: BSD-3-Clause
// What verbs that train or measure on ranks share: the options of their group, and whether a
// launcher has started this process as a rank.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include "lockstep/comm/init_process_group.h"

namespace lockstep::cli {

// --backend and --timeout.
struct RankOptions {
  std::string backend = "auto";
  std::chrono::milliseconds timeout = InitOptions().timeout;

  // Describes the options to the parser. The object must outlive it.
  void describe(::CLI::App& app);
};

// Returns the number of ranks that a launcher has started, with this process; 1 without a launcher.
int ranks_of_launcher();

// UsageError if a launcher has started this process as one of several.
void require_no_launcher(std::string_view verb);

}  // namespace lockstep::cli
