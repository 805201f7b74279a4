// SPDX-License-Identifier: BSD-3-Clause
// The result of one probe.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

struct Finding {
  // note: it works, but is incomplete or could be better. broken: training would fail.
  enum class State : std::uint8_t { ok, note, broken };

  // "blas", "backend shm"; docs/cli.md lists them all.
  std::string topic = {};
  State state = State::ok;
  std::string found = {};
  // What to do about it; empty if all is well.
  std::string advice = {};
};

}  // namespace lockstep
