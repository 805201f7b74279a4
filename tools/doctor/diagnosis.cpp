// SPDX-License-Identifier: BSD-3-Clause
// Runs all probes, turns their exceptions into findings, and formats the findings.
#include "tools/doctor/diagnosis.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <iterator>

#include <fmt/format.h>

#include "lockstep/comm/backends.h"
#include "lockstep/core/error.h"
#include "tools/doctor/probes.h"
#include "tools/recipes/json_fields.h"
#include "tools/report/text_table.h"

namespace lockstep {
namespace {

// A failing probe does not stop the others.
Finding look(const std::string& topic, const std::function<Finding()>& probe) {
  Finding finding;
  try {
    finding = probe();
  } catch (const std::exception& error) {
    finding = {.state = Finding::State::broken,
               .found = first_line(error),
               .advice = "fix what the message names; training would fail in the same way"};
  }
  finding.topic = topic;
  return finding;
}

// Probes the backends that doctor can try, in the order of the registry.
std::vector<Finding> probe_backends() {
  std::vector<Finding> findings;
  for (const BackendRow& row : backend_rows()) {
    if (row.trial == BackendRow::Trial::none) continue;
    findings.push_back(
        look(fmt::format("backend {}", row.name), [&] { return probe_backend(row); }));
  }
  return findings;
}

std::string_view state_name(Finding::State state) {
  switch (state) {
    case Finding::State::ok:
      return "ok";
    case Finding::State::note:
      return "note";
    case Finding::State::broken:
      return "broken";
  }
  return "";
}

std::string summary(const Diagnosis& diagnosis) {
  std::string broken;
  for (const auto& finding : diagnosis.findings) {
    if (finding.state != Finding::State::broken) continue;
    broken += fmt::format("{}{}", broken.empty() ? "" : ", ", finding.topic);
  }
  return broken.empty() ? "nothing is broken" : "broken: " + broken;
}

}  // namespace

bool Diagnosis::broken() const {
  return std::ranges::any_of(
      findings, [](const Finding& finding) { return finding.state == Finding::State::broken; });
}

Diagnosis diagnose() {
  // First, since they fork: later probes start threads, for which a forked rank would wait.
  std::vector<Finding> backends = probe_backends();
  Diagnosis diagnosis{{look("libtorch", probe_libtorch), look("blas", probe_blas),
                       look("cores", probe_cores), look("cgroup", probe_cgroup),
                       look("threads", probe_threads), look("memory", probe_memory)}};
  auto& findings = diagnosis.findings;
  findings.push_back(std::move(backends.front()));
  findings.push_back(look("backend thread", probe_thread_backend));
  findings.push_back(look("backend self", probe_self_backend));
  std::move(backends.begin() + 1, backends.end(), std::back_inserter(findings));
  findings.push_back(look("gpus", probe_gpus));
  findings.push_back(look("environment", probe_environment));
  findings.push_back(look("backend auto", probe_auto_backend));
  return diagnosis;
}

std::string to_text(const Diagnosis& diagnosis) {
  std::size_t width = 0;
  for (const auto& finding : diagnosis.findings) width = std::max(width, finding.topic.size());
  const Json versions = versions_json();
  std::string text =
      fmt::format("Lockstep {} for libtorch {}\n\n", versions.at("lockstep").get<std::string>(),
                  versions.at("libtorch").get<std::string>());
  for (const auto& finding : diagnosis.findings) {
    const std::size_t indent = 6 + 2 + width + 2;
    text += fmt::format("{:<6}  {:<{}}  {}\n", state_name(finding.state), finding.topic, width,
                        wrapped(finding.found, indent));
    if (!finding.advice.empty()) {
      text += fmt::format("{:{}}-> {}\n", "", indent, wrapped(finding.advice, indent + 3));
    }
  }
  return fmt::format("{}\n{}\n", text, summary(diagnosis));
}

std::string to_json(const Diagnosis& diagnosis) {
  Json json{{"schema_version", kSchemaVersion},
            {"versions", versions_json()},
            {"broken", diagnosis.broken()},
            {"findings", Json::array()}};
  for (const auto& finding : diagnosis.findings) {
    Json fields{
        {"topic", finding.topic}, {"state", state_name(finding.state)}, {"found", finding.found}};
    if (!finding.advice.empty()) fields["advice"] = finding.advice;
    json["findings"].push_back(std::move(fields));
  }
  // Environment variables may contain bytes that are not UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace lockstep
