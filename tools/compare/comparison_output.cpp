// SPDX-License-Identifier: BSD-3-Clause
// Formats a comparison as a table and as JSON.
#include <fmt/format.h>

#include "tools/compare/comparison_cells.h"
#include "tools/recipes/json_fields.h"

namespace lockstep {
namespace {

Cells header(const TrainResult& result) {
  Cells cells{"mode", "ranks", "threads", "s/epoch", "samples/s", "final loss"};
  if (result.accuracy) cells.emplace_back("accuracy");
  if (result.weight) cells.insert(cells.end(), {"weight", "bias"});
  cells.insert(cells.end(), {"speedup", "efficiency"});
  return cells;
}

Cells cells_of(const ComparisonRow& row) {
  const TrainResult& result = row.result;
  Cells cells{result.mode,
              std::to_string(result.ranks * result.replicas),
              std::to_string(result.threads),
              fmt::format("{:.3f}", result.seconds_per_epoch),
              fmt::format("{:.0f}", result.samples_per_second),
              fmt::format("{:.4f}", result.loss)};
  if (result.accuracy) cells.push_back(fmt::format("{:.2f} %", *result.accuracy * 100));
  if (result.weight) {
    cells.push_back(fmt::format("{:.4f}", *result.weight));
    cells.push_back(fmt::format("{:.4f}", *result.bias));
  }
  cells.push_back(fmt::format("{:.2f}", row.speedup));
  cells.push_back(fmt::format("{:.0f} %", row.efficiency * 100));
  return cells;
}

std::string megabytes(std::optional<double> number) {
  return number ? fmt::format("{:.0f}", *number) : "?";
}

Cells costs_of(const ComparisonRow& row) {
  const TrainResult& result = row.result;
  return {result.mode,
          std::to_string(result.ranks * result.replicas),
          megabytes(result.peak_mb),
          megabytes(result.fullest_peak_mb),
          fmt::format("{:.3f}", static_cast<double>(result.bytes_moved_per_step) / 1e6),
          std::to_string(row.needs.lines),
          std::string(row.needs.reach)};
}

}  // namespace

std::vector<Cells> figures(const Comparison& comparison) {
  std::vector<Cells> lines;
  for (const auto& row : comparison.rows) {
    if (lines.empty()) lines.push_back(header(row.result));
    lines.push_back(cells_of(row));
  }
  return lines;
}

std::vector<Cells> costs(const Comparison& comparison) {
  std::vector<Cells> lines{
      {"mode", "ranks", "peak MB", "of the fullest", "MB moved a step", "lines changed", "reach"}};
  for (const auto& row : comparison.rows) lines.push_back(costs_of(row));
  return lines;
}

std::string to_table(const Comparison& comparison) {
  if (comparison.rows.empty()) return {};
  return align_columns(figures(comparison)) + "\n" + align_columns(costs(comparison));
}

std::string to_json(const Comparison& comparison) {
  Json json{{"schema_version", kSchemaVersion},
            {"versions", versions_json()},
            {"recipe", nullptr},
            {"device", nullptr},
            {"seed", nullptr},
            {"epochs", nullptr},
            {"global_batch_size", comparison.global_batch_size},
            {"cores", comparison.cores},
            {"rows", Json::array()}};
  for (const auto& row : comparison.rows) {
    Json fields = fields_of(row.result);
    for (const char* shared : {"recipe", "device", "seed", "epochs"}) json[shared] = fields[shared];
    fields["speedup"] = row.speedup;
    fields["cores_in_use"] = row.cores_in_use;
    fields["efficiency"] = row.efficiency;
    fields["lines"] = row.needs.lines;
    fields["reach"] = row.needs.reach;
    json["rows"].push_back(std::move(fields));
  }
  return json.dump();
}

}  // namespace lockstep
