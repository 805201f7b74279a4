// SPDX-License-Identifier: BSD-3-Clause
// `lockstep doctor`: reports on the machine, the libraries and the environment.
#pragma once

#include <CLI/CLI.hpp>

namespace lockstep::cli {

struct DoctorCommand {
  bool json = false;

  // Describes the verb to the parser. The object must outlive it.
  void describe(::CLI::App& app);

  // Returns the exit code: 1 if something is broken.
  int run() const;
};

}  // namespace lockstep::cli
