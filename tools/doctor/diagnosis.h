// SPDX-License-Identifier: BSD-3-Clause
// What Lockstep finds of the machine, the libraries and the environment that it would train in.
#pragma once

#include <string>
#include <vector>

#include "tools/doctor/finding.h"

namespace lockstep {

struct Diagnosis {
  // One for each topic, always all of them and in the same order.
  std::vector<Finding> findings;

  bool broken() const;
};

// Looks at everything; a part that cannot be looked at is a finding as well. Takes a second at
// best, and 20 seconds if ranks hang. Starts two ranks with spawn() and ends them, so it is to be
// called from the main thread, before anything else uses libtorch.
Diagnosis diagnose();

// Lines for people, with a summary as the last one.
std::string to_text(const Diagnosis& diagnosis);
// One object, on one line; documented in docs/cli.md.
std::string to_json(const Diagnosis& diagnosis);

}  // namespace lockstep
