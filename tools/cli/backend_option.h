// SPDX-License-Identifier: BSD-3-Clause
// The option --backend, with a line of help for each backend.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "lockstep/comm/backends.h"
#include "lockstep/comm/init_process_group.h"

namespace lockstep::cli {

inline void add_backend_option(::CLI::App& app, std::string& backend) {
  std::string help = "Join the ranks with this backend\n  auto: the fastest that joins them";
  for (const BackendRow& row : backend_rows()) {
    help.append("\n  ").append(row.name).append(": ").append(row.help);
  }
  app.add_option("--backend", backend, help)
      ->check(::CLI::IsMember(backends()))
      ->capture_default_str()
      ->type_name("BACKEND");
}

}  // namespace lockstep::cli
