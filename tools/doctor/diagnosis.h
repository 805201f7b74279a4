// SPDX-License-Identifier: BSD-3-Clause
// Diagnoses the machine, the libraries and the environment for training.
#pragma once

#include <string>
#include <vector>

#include "tools/doctor/probes.h"

namespace lockstep {

struct Diagnosis {
  // One for each topic, always in the same order.
  std::vector<Finding> findings;

  bool broken() const;
};

// Runs all probes; a probe that fails becomes a finding. Takes a second at best, and 20 seconds if
// ranks hang. Starts two ranks with spawn() and ends them, so call it from the main thread, before
// anything else uses libtorch.
Diagnosis diagnose();

// Human-readable lines; the last one is a summary.
std::string to_text(const Diagnosis& diagnosis);
// One object, on one line; documented in docs/cli.md.
std::string to_json(const Diagnosis& diagnosis);

}  // namespace lockstep
