// SPDX-License-Identifier: BSD-3-Clause
// Starts the runs as `lockstep train`, and names what their bits depend on.
#include "tools/verify/verification.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include <ATen/Version.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "tools/doctor/probes.h"
#include "tools/recipes/json_fields.h"
#include "tools/recipes/local_training.h"
#include "tools/report/text_table.h"

namespace lockstep {
namespace {

struct PlannedRun {
  TrainingMode mode;
  int ranks = 1;
};

std::vector<PlannedRun> runs_to_verify(const VerificationOptions& options) {
  std::vector<PlannedRun> runs;
  for (const TrainingMode mode : options.modes) {
    if (mode == TrainingMode::single) {
      runs.push_back({mode});
    } else {
      for (const int ranks : options.ranks) runs.push_back({mode, ranks});
    }
  }
  if (runs.size() > 1) return runs;
  throw UsageError(
      fmt::format("{} run{} to compare; give several modes, or several numbers of "
                  "ranks",
                  runs.size(), runs.size() == 1 ? "" : "s"));
}

VerifiedRun run_once(const Recipe& recipe, const PlannedRun& run,
                     const VerificationOptions& options) {
  const bool distributed = run.mode == TrainingMode::distributed;
  const std::string mode(mode_name(run.mode));
  std::vector<std::string> program = options.train_program;
  for (const std::string& argument : train_arguments(options.training)) program.push_back(argument);
  const auto add = [&](const char* option, const std::string& value) {
    program.emplace_back(option);
    program.push_back(value);
  };
  program.push_back(recipe.name);
  add("--mode", mode);
  add("--ranks", std::to_string(run.ranks));
  add("--microbatches", std::to_string(options.training.trainer.microbatches));
  add("--lr-scale", fmt::format("{}", options.training.trainer.lr_scale));
  if (options.training.trainer.amp)
    add("--amp", std::string(amp_name(*options.training.trainer.amp)));
  if (options.training.batch_size)
    add("--batch-size", std::to_string(*options.training.batch_size));
  if (options.training.global_batch_size) {
    add("--global-batch-size", std::to_string(*options.training.global_batch_size));
  }
  if (options.device) add("--device", *options.device);
  if (distributed) {
    add("--backend", options.backend);
    add("--timeout", fmt::format("{}", options.timeout.count() / 1000.0));
  }
  const std::string title = mode + (run.ranks == 1 ? "" : fmt::format(" x {}", run.ranks));
  const TrainResult result = run_local_training(
      {.program = std::move(program),
       .ranks = distributed ? run.ranks : 1,
       .threads = 1,
       .output = {.stream = OutputStream::err, .prefix = fmt::format("[{}] ", title)}});
  return {.mode = mode, .ranks = run.ranks, .sha256 = result.sha256};
}

// The rest of the line that begins with `label`; empty if there is none.
std::string value_of_line(std::istream& text, std::string_view label) {
  for (std::string line; std::getline(text, line);) {
    const std::size_t found = line.find(label);
    if (found == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t:", found + label.size());
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return {};
}

// What computes the bits, besides the seed and the data.
Json computed_by() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::istringstream config(at::show_config());
  const Blas blas = find_blas();
  return {{"processor", value_of_line(cpuinfo, "model name")},
          {"instructions", value_of_line(config, "CPU capability usage")},
          {"libtorch", versions_json().at("libtorch")},
          {"blas", blas.name.empty() ? blas.file : blas.name},
          {"threads", 1}};
}

}  // namespace

bool Verification::identical() const {
  return std::ranges::all_of(
      rows, [&](const VerifiedRun& row) { return row.sha256 == rows.front().sha256; });
}

Verification verify(const Recipe& recipe, const VerificationOptions& options) {
  const std::vector<PlannedRun> runs = runs_to_verify(options);
  check_recipe_options(recipe, options.training, *std::ranges::max_element(options.ranks));
  Verification verification{
      .recipe = recipe.name, .microbatches = options.training.trainer.microbatches, .rows = {}};
  for (const PlannedRun& run : runs) verification.rows.push_back(run_once(recipe, run, options));
  return verification;
}

std::string to_table(const Verification& verification) {
  std::string text;
  for (const VerifiedRun& row : verification.rows) {
    text += fmt::format("{:<7} {:>3}  {}\n", row.mode, row.ranks, row.sha256);
  }
  std::set<std::string> hashes;
  for (const VerifiedRun& row : verification.rows) hashes.insert(row.sha256);
  const Json by = computed_by();
  const auto fact = [&](const char* name) { return by.at(name).get<std::string>(); };
  const std::string verdict =
      verification.identical()
          ? fmt::format(
                "identical: {} runs of {} in {} microbatches ended with the same weights, "
                "buffers and optimizer state.",
                verification.rows.size(), verification.recipe, verification.microbatches)
          : fmt::format(
                "different: {} runs of {} in {} microbatches ended with {} different "
                "states.",
                verification.rows.size(), verification.recipe, verification.microbatches,
                hashes.size());
  const std::string depends = fmt::format(
      "The bits depend on the processor ({}), its instructions that libtorch uses ({}), libtorch "
      "({}), its BLAS ({}), and one thread for each rank.",
      fact("processor"), fact("instructions"), fact("libtorch"), fact("blas"));
  return text + wrapped(verdict, 0) + "\n" + wrapped(depends, 0) + "\n";
}

std::string to_json(const Verification& verification) {
  Json rows = Json::array();
  for (const VerifiedRun& row : verification.rows) {
    rows.push_back({{"mode", row.mode}, {"ranks", row.ranks}, {"sha256", row.sha256}});
  }
  const Json json{{"schema_version", kSchemaVersion}, {"versions", versions_json()},
                  {"recipe", verification.recipe},    {"microbatches", verification.microbatches},
                  {"rows", std::move(rows)},          {"identical", verification.identical()},
                  {"depends_on", computed_by()}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace lockstep
