// SPDX-License-Identifier: BSD-3-Clause
// Public. Options of a job that goes on without ranks that it loses, and replaces them
// (docs/elastic.md).
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace lockstep {

// `spawn` starts ranks on one machine; `lockstep run` counts those of all machines.
struct ElasticOptions {
  // The job fails when fewer ranks than this are left.
  int least = 1;
  // The most ranks that `lockstep resize` may ask for; those that the job starts with, if it has
  // more.
  int most = 1;
  // How many newcomers may be started in place of lost ranks.
  int replacements = 3;
  // A rank that makes no progress for so long after its first step, and lets the others wait, is
  // killed. 0: none is.
  std::chrono::milliseconds hang_timeout{};
  // Gets a line about each rank that is lost, started or admitted, and about each resize, instead
  // of standard error. Must not throw or block.
  std::function<void(const std::string& line)> on_event{};
};

}  // namespace lockstep
