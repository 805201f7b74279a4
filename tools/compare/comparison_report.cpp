// SPDX-License-Identifier: BSD-3-Clause
// Fills the page template with tables, data, machine facts and the chart library.
#include "tools/compare/comparison_report.h"

#include <array>
#include <ctime>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/utsname.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "tools/compare/comparison_cells.h"
#include "tools/compare/report_page.h"
#include "tools/recipes/json_fields.h"

namespace lockstep {
namespace {

constexpr std::array kChartLibraryPaths{"/usr/share/javascript/chart.js/chart.min.js",
                                        "/usr/share/javascript/chart.js/chart.umd.js"};

std::string escaped(std::string_view text) {
  std::string html;
  for (const char c : text) {
    switch (c) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      default:
        html += c;
    }
  }
  return html;
}

// A script element needs no escaping, but must not contain anything that looks like its end.
std::string inside_script(std::string text) {
  for (std::size_t at = 0; (at = text.find("</", at)) != std::string::npos; at += 3) {
    text.replace(at, 2, "<\\/");
  }
  return text;
}

std::string table(const std::vector<Cells>& lines) {
  std::string html = "<table>";
  for (std::size_t line = 0; line < lines.size(); ++line) {
    const char* tag = line == 0 ? "th" : "td";
    html += "<tr>";
    for (const std::string& cell : lines[line]) {
      html += fmt::format("<{0}>{1}</{0}>", tag, escaped(cell));
    }
    html += "</tr>\n";
  }
  return html + "</table>";
}

// The text after "name:" or "name :" in a file of /proc.
std::string proc_field(const char* file, std::string_view name) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    const auto colon = line.find(':');
    if (!line.starts_with(name) || colon == std::string::npos) continue;
    const auto value = line.find_first_not_of(" \t", colon + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return {};
}

std::string processor() {
  const std::string model = proc_field("/proc/cpuinfo", "model name");
  return model.empty() ? "unknown" : model;
}

std::string memory() {
  const std::string kibibytes = proc_field("/proc/meminfo", "MemTotal");
  return kibibytes.empty() ? "unknown"
                           : fmt::format("{:.1f} GB", std::stod(kibibytes) * 1024 / 1e9);
}

std::string system_name() {
  utsname name{};
  return ::uname(&name) == 0 ? fmt::format("{} {}", name.sysname, name.release) : "unknown";
}

bool on_gpu(const Comparison& comparison) {
  return !comparison.rows.empty() && comparison.rows.front().result.device != "cpu";
}

std::string how_it_was_made(const Comparison& comparison, const std::string& command) {
  const Json versions = versions_json();
  const std::vector<std::pair<std::string, std::string>> facts{
      {"command", command},
      {"when", fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr)))},
      {"processor", fmt::format("{}, {} core{} in use", processor(), comparison.cores,
                                comparison.cores == 1 ? "" : "s")},
      {"device", comparison.rows.empty() ? "" : comparison.rows.front().result.device},
      {"memory", memory()},
      {"system", system_name()},
      {"versions",
       fmt::format("Lockstep {}, libtorch {}", versions.at("lockstep").get<std::string>(),
                   versions.at("libtorch").get<std::string>())}};
  std::string html;
  for (const auto& [name, fact] : facts) {
    html += fmt::format("<dt>{}</dt><dd>{}</dd>\n", name,
                        name == "command" ? "<code>" + escaped(fact) + "</code>" : escaped(fact));
  }
  return html;
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
  return fmt::format("{} epoch{}, seed {}, learning rate {:g}", first.epochs,
                     first.epochs == 1 ? "" : "s", first.seed, first.learning_rate);
}

// Replaces each placeholder once: a text that is inserted may hold one itself.
std::string filled(std::string_view page,
                   const std::vector<std::pair<std::string_view, std::string>>& texts) {
  std::string result;
  while (true) {
    const auto begin = page.find("{{");
    result += page.substr(0, begin);
    if (begin == std::string_view::npos) return result;
    const auto end = page.find("}}", begin);
    const auto name = page.substr(begin + 2, end - begin - 2);
    for (const auto& [known, text] : texts) {
      if (known == name) result += text;
    }
    page.remove_prefix(end + 2);
  }
}

}  // namespace

std::string read_chart_library() {
  const auto given = environment("LOCKSTEP_CHART_JS");
  std::vector<std::string> paths(kChartLibraryPaths.begin(), kChartLibraryPaths.end());
  if (given) paths = {*given};
  for (const std::string& path : paths) {
    std::ifstream file(path, std::ios::binary);
    std::string text(std::istreambuf_iterator<char>(file), {});
    if (!text.empty()) return text;
  }
  throw UsageError(fmt::format(
      "--report needs Chart.js, which is not in {}. Install it (Debian: apt-get install "
      "libjs-chart.js), or name its file in LOCKSTEP_CHART_JS",
      paths.front()));
}

std::string to_html(const Comparison& comparison, const std::string& command,
                    const std::string& chart_library) {
  if (comparison.rows.empty()) throw UsageError("a report needs at least one training");
  const std::string title = fmt::format("{}: single, DataParallel and DistributedDataParallel",
                                        comparison.rows.front().result.recipe);
  return filled(report_page,
                {{"TITLE", escaped(title)},
                 {"SUMMARY", escaped(summary(comparison))},
                 {"UNITS", on_gpu(comparison) ? "GPUs" : "cores"},
                 {"GLOBAL_BATCH", global_batch_heading(comparison)},
                 {"GLOBAL_BATCH_SIZE", std::to_string(comparison.global_batch_size)},
                 {"FIGURES", table(figures(comparison.rows))},
                 {"RANK_BATCH", rank_batch_heading(comparison)},
                 {"FIGURES_SAME_RANK_BATCH", table(figures(comparison.rows_same_rank_batch))},
                 {"COSTS", table(costs(comparison))},
                 {"HOW", how_it_was_made(comparison, command)},
                 {"DATA", inside_script(data(comparison))},
                 {"CHART_LIBRARY", inside_script(chart_library)}});
}

}  // namespace lockstep
