// SPDX-License-Identifier: BSD-3-Clause
// What was found about one part of the machine, the libraries or the environment.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

struct Finding {
  // note: it works, but something could be better, or is not there. broken: training would fail.
  enum class State : std::uint8_t { ok, note, broken };

  // "blas", "backend shm"; docs/cli.md lists them all.
  std::string topic = {};
  State state = State::ok;
  std::string found = {};
  // What to do about it; empty where all is well.
  std::string advice = {};
};

}  // namespace lockstep
