// SPDX-License-Identifier: BSD-3-Clause
// Formats the figures of a comparison once, for tables and page.
#include "tools/compare/comparison_output.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/core/process/cpu.h"
#include "tools/recipes/json_fields.h"
#include "tools/report/page.h"
#include "tools/report/text_table.h"

namespace lockstep {
namespace {

Cells header(const TrainResult& result) {
  Cells cells{"mode", "ranks", "threads", "s/epoch", "samples/s", "final loss"};
  if (result.accuracy) cells.emplace_back("accuracy");
  if (result.bits_per_character) cells.emplace_back("bits/char");
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
  if (result.bits_per_character) {
    cells.push_back(fmt::format("{:.3f}", *result.bits_per_character));
  }
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

Json rows_json(const std::vector<ComparisonRow>& rows) {
  Json json = Json::array();
  for (const auto& row : rows) {
    Json fields = fields_of(row.result);
    fields["speedup"] = row.speedup;
    fields["cores_in_use"] = row.cores_in_use;
    fields["efficiency"] = row.efficiency;
    fields["lines"] = row.needs.lines;
    fields["reach"] = row.needs.reach;
    json.push_back(std::move(fields));
  }
  return json;
}

std::string global_batch_heading(const Comparison& comparison) {
  return fmt::format("Global batch of {} in every row, so that all take the same steps",
                     comparison.global_batch_size);
}

std::string rank_batch_heading(const Comparison& comparison) {
  return fmt::format(
      "Batch of {} on each rank or replica in every row, so that more ranks take fewer steps",
      comparison.batch_size);
}

// Time, loss, accuracy, speedup: one line for each row, after a line of names.
std::vector<Cells> figures(const std::vector<ComparisonRow>& rows) {
  std::vector<Cells> lines;
  for (const auto& row : rows) {
    if (lines.empty()) lines.push_back(header(row.result));
    lines.push_back(cells_of(row));
  }
  return lines;
}

// Memory, traffic, lines of code, reach of comparison.rows, after a line of names.
std::vector<Cells> costs(const Comparison& comparison) {
  std::vector<Cells> lines{
      {"mode", "ranks", "peak MB", "fullest rank", "MB moved per step", "lines changed", "reach"}};
  for (const auto& row : comparison.rows) lines.push_back(costs_of(row));
  return lines;
}

// Says that the load exceeded the cores during a run; empty if it did not.
std::string load_note(const Comparison& comparison) {
  std::optional<double> greatest;
  for (const auto* rows : {&comparison.rows, &comparison.rows_same_rank_batch}) {
    for (const auto& row : *rows) greatest = std::max(greatest, row.result.core_wait);
  }
  return overload(greatest);
}

bool on_gpu(const Comparison& comparison) {
  return !comparison.rows.empty() && comparison.rows.front().result.device != "cpu";
}

std::string label(const TrainResult& result) {
  const int parts = result.ranks * result.replicas;
  if (parts > 1) return fmt::format("{} x {}", result.mode, parts);
  return fmt::format("{}, {} thread{}", result.mode, result.threads,
                     result.threads == 1 ? "" : "s");
}

std::string data(const Comparison& comparison) {
  Json json = Json::parse(to_json(comparison));
  const auto add_labels = [&](const char* view, const std::vector<ComparisonRow>& rows) {
    for (std::size_t i = 0; i < rows.size(); ++i) json[view][i]["label"] = label(rows[i].result);
  };
  add_labels("rows", comparison.rows);
  add_labels("rows_same_rank_batch", comparison.rows_same_rank_batch);
  return json.dump();
}

std::string summary(const Comparison& comparison) {
  const TrainResult& first = comparison.rows.front().result;
  const std::string note = load_note(comparison);
  return fmt::format("{} epoch{}, seed {}, learning rate {:g}{}{}", first.epochs,
                     first.epochs == 1 ? "" : "s", first.seed, first.learning_rate,
                     note.empty() ? "" : ". ", note);
}

}  // namespace

std::string to_table(const Comparison& comparison) {
  if (comparison.rows.empty()) return {};
  const std::string note = wrapped(load_note(comparison), 0);
  return fmt::format(
      "{}\n{}\n{}\n{}\nCosts, with the global batch of {}:\n{}{}{}",
      wrapped(global_batch_heading(comparison) + ":", 0), align_columns(figures(comparison.rows)),
      wrapped(rank_batch_heading(comparison) + ":", 0),
      align_columns(figures(comparison.rows_same_rank_batch)), comparison.global_batch_size,
      align_columns(costs(comparison)), note.empty() ? "" : "\n" + note, note.empty() ? "" : "\n");
}

std::string to_json(const Comparison& comparison) {
  Json json{{"schema_version", kSchemaVersion},
            {"versions", versions_json()},
            {"recipe", nullptr},
            {"device", nullptr},
            {"seed", nullptr},
            {"epochs", nullptr},
            {"global_batch_size", comparison.global_batch_size},
            {"batch_size", comparison.batch_size},
            {"cores", comparison.cores},
            {"rows", rows_json(comparison.rows)},
            {"rows_same_rank_batch", rows_json(comparison.rows_same_rank_batch)}};
  for (const char* shared : {"recipe", "device", "seed", "epochs"}) {
    if (!comparison.rows.empty()) json[shared] = json["rows"].back()[shared];
  }
  if (const auto note = load_note(comparison); !note.empty()) json["load"] = note;
  return json.dump();
}

std::string to_html(const Comparison& comparison, const std::string& command,
                    const std::string& chart_library) {
  if (comparison.rows.empty()) throw UsageError("a report needs at least one training run");
  const std::string title = fmt::format("{}: single, DataParallel and DistributedDataParallel",
                                        comparison.rows.front().result.recipe);
  return filled(comparison_page,
                {{"TITLE", escaped(title)},
                 {"SUMMARY", escaped(summary(comparison))},
                 {"UNITS", on_gpu(comparison) ? "GPUs" : "cores"},
                 {"GLOBAL_BATCH", global_batch_heading(comparison)},
                 {"GLOBAL_BATCH_SIZE", std::to_string(comparison.global_batch_size)},
                 {"FIGURES", html_table(figures(comparison.rows))},
                 {"RANK_BATCH", rank_batch_heading(comparison)},
                 {"FIGURES_SAME_RANK_BATCH", html_table(figures(comparison.rows_same_rank_batch))},
                 {"COSTS", html_table(costs(comparison))},
                 {"HOW", how_it_was_made(command, comparison.rows.front().result.device,
                                         fmt::format("{} core{}", comparison.cores,
                                                     comparison.cores == 1 ? "" : "s"))},
                 {"DATA", inside_script(data(comparison))},
                 {"CHART_LIBRARY", inside_script(chart_library)}});
}

}  // namespace lockstep
