// SPDX-License-Identifier: BSD-3-Clause
// Escapes and joins the parts of a page, and describes the machine.
#include "tools/report/page.h"

#include <array>
#include <ctime>
#include <fstream>
#include <iterator>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/utsname.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "tools/recipes/json_fields.h"

namespace lockstep {
namespace {

constexpr std::array kChartLibraryPaths{"/usr/share/javascript/chart.js/chart.min.js",
                                        "/usr/share/javascript/chart.js/chart.umd.js"};

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

std::string html_table(const std::vector<Cells>& lines) {
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

std::string how_it_was_made(const std::string& command, const std::string& device,
                            const std::string& in_use) {
  const Json versions = versions_json();
  const std::vector<std::pair<std::string, std::string>> facts{
      {"command", command},
      {"when", fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr)))},
      {"processor", fmt::format("{}, {} in use", processor(), in_use)},
      {"device", device},
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

// Replaces each placeholder once: a text that is inserted may hold one itself.
std::string filled(std::string_view page, PageTexts texts) {
  texts.emplace_back("STYLE", report_style);
  texts.emplace_back("CHARTS", report_charts);
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

}  // namespace lockstep
