// SPDX-License-Identifier: BSD-3-Clause
// `--timeout`: how long ranks wait for each other.
#pragma once

#include <chrono>
#include <cstdint>

#include "number_option.h"
#include <CLI/CLI.hpp>

#include "lockstep/comm/init_process_group.h"

namespace lockstep::cli {

struct TimeoutOption {
  double seconds = std::chrono::duration<double>(InitOptions().timeout).count();

  // Describes the option to the parser. The object must outlive it.
  void describe(::CLI::App& app) {
    add_number(app, "--timeout", seconds, Range<double>{0.001, 1e9},
               "Stop waiting for other ranks after this time")
        ->type_name("SECONDS");
  }

  std::chrono::milliseconds value() const {
    return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
  }
};

}  // namespace lockstep::cli
