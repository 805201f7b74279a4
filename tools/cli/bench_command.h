// SPDX-License-Identifier: BSD-3-Clause
// `lockstep bench`: measures collectives and training steps, on its own ranks or a launcher's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <CLI/CLI.hpp>

#include "lockstep/core/number.h"
#include "lockstep/launch/rank_reports.h"
#include "tools/bench/collective_bench.h"
#include "tools/bench/step_bench.h"
#include "tools/bench/training.h"
#include "tools/cli/rank_options.h"

namespace lockstep::cli {

struct BenchCommand {
  std::optional<int> ranks;
  RankOptions rank_options;
  bool json = false;
  // The following options are for collectives.
  std::string type = "float";
  std::string op = "sum";
  std::string algorithm = "automatic";
  std::vector<std::int64_t> sizes;
  bool ordinary = false;
  // The following options are for steps.
  std::string model;
  std::string device = "cpu";
  std::optional<std::int64_t> batch_size;
  bool set_to_none = false;
  bool check_finite = false;
  std::vector<bench::OptimizerKind> optimizers = {bench::OptimizerKind::torch};
  std::vector<bench::AmpKind> amps = {bench::AmpKind::none};
  std::vector<bench::CommHookKind> comm_hooks = {bench::CommHookKind::none};

  // Describes the verb to the parser. The object must outlive it.
  void describe(::CLI::App& app);
  int run() const;

 private:
  void describe_ranks(::CLI::App& app, const Range<int>& range, const char* what);
  void describe_collective(::CLI::App& app);
  int rank_count() const;
  at::Device device_of(int local_rank) const;
  // The bar on a terminal says what is measured.
  StatusLine status(const std::string& what) const;
  std::shared_ptr<ProcessGroup> join(std::optional<at::Device> on) const;
  // The peak memory of the fullest of `count` ranks, in 10^6 bytes.
  double peak_mb(const bench::TrainingStep& step, bench::StepMode mode, int count) const;
  // Runs the function on every rank, on the requested device: in processes of its own, or, under a
  // launcher, in this process, which is then a rank. Returns the result of rank 0; nullopt on the
  // other ranks of a launcher.
  template <class Function>
  auto on_ranks(const std::string& what, const Function& function) const
      -> std::optional<std::invoke_result_t<Function, const std::shared_ptr<ProcessGroup>&>>;
  int run_collective(Collective collective) const;
  void describe_step(::CLI::App& app);
  void describe_optimizers(::CLI::App& app);
  bench::TrainingStep training_step(at::Device on) const;
  int run_step() const;
  int run_dp() const;
  int run_memory() const;

  std::vector<std::pair<::CLI::App*, Collective>> collectives_;
  ::CLI::App* step_ = nullptr;
  ::CLI::App* dp_ = nullptr;
  ::CLI::App* memory_ = nullptr;
};

}  // namespace lockstep::cli
