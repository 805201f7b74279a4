// SPDX-License-Identifier: BSD-3-Clause
// `lockstep bench`: measures collectives and training steps on this machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "lockstep/bench/collective_bench.h"

namespace lockstep::cli {

struct BenchCommand {
  std::optional<int> ranks;
  bool json = false;
  // Of collectives.
  std::string type = "float";
  std::string op = "sum";
  std::string algorithm = "automatic";
  std::vector<std::uint64_t> sizes;
  bool ordinary = false;
  // Of steps.
  std::string model;
  bool set_to_none = false;

  // Describes the verb to the parser. The object must outlive it.
  void describe(::CLI::App& app);
  int run() const;

 private:
  void describe_ranks(::CLI::App& app);
  void describe_collective(::CLI::App& app);
  int rank_count() const;
  int run_collective(Collective collective) const;
  int run_step() const;

  std::vector<std::pair<::CLI::App*, Collective>> collectives_;
  ::CLI::App* step_ = nullptr;
};

}  // namespace lockstep::cli
