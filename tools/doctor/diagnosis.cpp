// SPDX-License-Identifier: BSD-3-Clause
// Runs all probes, and turns their exceptions into findings.
#include "tools/doctor/diagnosis.h"

#include <algorithm>
#include <exception>

#include "tools/doctor/probes.h"
#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

// A failing probe does not stop the others.
Finding look(const char* topic, Finding (*probe)()) {
  Finding finding;
  try {
    finding = probe();
  } catch (const std::exception& error) {
    finding = {.state = Finding::State::broken,
               .found = first_line(error),
               .advice = "mend what the message names; training would meet it too"};
  }
  finding.topic = topic;
  return finding;
}

}  // namespace

bool Diagnosis::broken() const {
  return std::ranges::any_of(
      findings, [](const Finding& finding) { return finding.state == Finding::State::broken; });
}

Diagnosis diagnose() {
  // First, since they fork: later probes start threads, for which a forked rank would wait.
  Finding shm = look("backend shm", probe_shm);
  Finding gloo = look("backend gloo", probe_gloo);
  Diagnosis diagnosis{{look("libtorch", probe_libtorch), look("blas", probe_blas),
                       look("cores", probe_cores), look("cgroup", probe_cgroup),
                       look("threads", probe_threads), look("memory", probe_memory), std::move(shm),
                       look("backend thread", probe_thread), look("backend self", probe_self),
                       std::move(gloo), look("backend mpi", probe_mpi),
                       look("backend nccl", probe_nccl), look("gpus", probe_gpus),
                       look("environment", probe_environment), look("backend auto", probe_auto)}};
  return diagnosis;
}

}  // namespace lockstep
