// SPDX-License-Identifier: BSD-3-Clause
// Fills the page template with tables, data, machine facts and the chart library.
#include "tools/compare/comparison_report.h"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "tools/compare/comparison_cells.h"
#include "tools/compare/report_page.h"
#include "tools/recipes/json_fields.h"
#include "tools/report/page.h"

namespace lockstep {
namespace {

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

std::string to_html(const Comparison& comparison, const std::string& command,
                    const std::string& chart_library) {
  if (comparison.rows.empty()) throw UsageError("a report needs at least one training run");
  const std::string title = fmt::format("{}: single, DataParallel and DistributedDataParallel",
                                        comparison.rows.front().result.recipe);
  return filled(report_page,
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
