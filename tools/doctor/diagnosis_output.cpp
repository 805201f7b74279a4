// SPDX-License-Identifier: BSD-3-Clause
// Formats a diagnosis as text and as JSON.
#include <algorithm>

#include <fmt/format.h>

#include "tools/doctor/diagnosis.h"
#include "tools/recipes/json_fields.h"

namespace lockstep {
namespace {

std::string_view word(Finding::State state) {
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

std::string to_text(const Diagnosis& diagnosis) {
  std::size_t width = 0;
  for (const auto& finding : diagnosis.findings) width = std::max(width, finding.topic.size());
  const Json versions = versions_json();
  std::string text =
      fmt::format("Lockstep {} for libtorch {}\n\n", versions.at("lockstep").get<std::string>(),
                  versions.at("libtorch").get<std::string>());
  for (const auto& finding : diagnosis.findings) {
    text += fmt::format("{:<6}  {:<{}}  {}\n", word(finding.state), finding.topic, width,
                        finding.found);
    if (!finding.advice.empty())
      text += fmt::format("{:{}}-> {}\n", "", width + 10, finding.advice);
  }
  return fmt::format("{}\n{}\n", text, summary(diagnosis));
}

std::string to_json(const Diagnosis& diagnosis) {
  Json json{{"schema_version", kSchemaVersion},
            {"versions", versions_json()},
            {"broken", diagnosis.broken()},
            {"findings", Json::array()}};
  for (const auto& finding : diagnosis.findings) {
    Json fields{{"topic", finding.topic}, {"state", word(finding.state)}, {"found", finding.found}};
    if (!finding.advice.empty()) fields["advice"] = finding.advice;
    json["findings"].push_back(std::move(fields));
  }
  // Environment variables may contain bytes that are not UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace lockstep
