// SPDX-License-Identifier: BSD-3-Clause
// `lockstep resize`: gives a running elastic job more or fewer ranks.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

struct ResizeCommand {
  std::string job;
  int ranks = 0;

  // Describes the verb to the parser. The object must outlive it.
  void describe(::CLI::App& app);
  // Asks the job's launcher, prints its answer, and returns the exit code. Throws what
  // ask_to_resize() throws.
  int run() const;
};

}  // namespace lockstep::cli
