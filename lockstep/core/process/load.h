// SPDX-License-Identifier: BSD-3-Clause
// Whether the machine has more work than cores.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// How many of this process's cores nobody used during the window: 1.5 of 2. The caller sleeps
// meanwhile. nullopt if /proc does not tell.
std::optional<double> idle_cores(std::chrono::milliseconds window);

// The same of the given cores, between two texts of /proc/stat.
std::optional<double> idle_cores(const std::string& before, const std::string& after,
                                 const std::vector<int>& cores);

// Measures how long the thread that made it waits for a core while it could run.
class CoreWait {
 public:
  CoreWait();
  // Since construction: from 0, never, to 1. Call it in the same thread. nullopt if /proc does not
  // tell.
  std::optional<double> share() const;

 private:
  struct Times {
    double running = 0;
    double waiting = 0;
  };
  static std::optional<Times> times();

  std::optional<Times> start_;
};

// A sentence with the remedy if a rank waited for a core for a tenth of its time or more; else
// empty. At most 100 characters.
std::string overload(std::optional<double> core_wait);

}  // namespace lockstep
