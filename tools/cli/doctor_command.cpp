// SPDX-License-Identifier: BSD-3-Clause
// Prints the diagnosis as text or JSON.
#include "tools/cli/doctor_command.h"

#include <cstdio>

#include "tools/cli/help.h"
#include "tools/cli/print.h"
#include "tools/doctor/diagnosis.h"

namespace lockstep::cli {

void DoctorCommand::describe(::CLI::App& app) {
  app.add_flag("--json", json, "One JSON object, and nothing else, on standard output");
  add_examples(app, {{"lockstep doctor", "Look for what would prevent training here"},
                     {"lockstep run -n 2 lockstep doctor",
                      "See which ranks and backend a launcher's environment gives"}});
}

int DoctorCommand::run() const {
  const Diagnosis diagnosis = diagnose();
  check_output(print(stdout, json ? to_json(diagnosis) + "\n" : to_text(diagnosis)));
  return diagnosis.broken() ? 1 : 0;
}

}  // namespace lockstep::cli
