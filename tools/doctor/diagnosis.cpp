// SPDX-License-Identifier: BSD-3-Clause
// Runs all probes, and turns their exceptions into findings.
#include "tools/doctor/diagnosis.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <iterator>

#include <fmt/format.h>

#include "lockstep/comm/backends.h"
#include "lockstep/core/error.h"
#include "tools/doctor/probes.h"

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
    findings.push_back(look(fmt::format("backend {}", row.name), [&] { return probe(row); }));
  }
  return findings;
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
  findings.push_back(look("backend thread", probe_thread));
  findings.push_back(look("backend self", probe_self));
  std::move(backends.begin() + 1, backends.end(), std::back_inserter(findings));
  findings.push_back(look("gpus", probe_gpus));
  findings.push_back(look("environment", probe_environment));
  findings.push_back(look("backend auto", probe_auto));
  return diagnosis;
}

}  // namespace lockstep
