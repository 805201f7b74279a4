// SPDX-License-Identifier: BSD-3-Clause
// Describes the verb and prints the launcher's answer.
#include "tools/cli/resize_command.h"

#include <cstdio>

#include <fmt/format.h>

#include "lockstep/launch/resize.h"
#include "tools/cli/help.h"
#include "tools/cli/option_values.h"
#include "tools/cli/print.h"

namespace lockstep::cli {

void ResizeCommand::describe(::CLI::App& app) {
  app.add_option("JOB", job,
                 "Job of this user on this machine, started by `lockstep run --elastic MIN:MAX`: "
                 "the launcher's pid, or the TORCHELASTIC_RUN_ID of its ranks")
      ->required();
  app.add_option_function<std::string>(
         "N", [this](const std::string& text) { ranks = read_number("N", text, kCounts); },
         "Number of ranks that it is to have, from MIN to MAX: newcomers join at the end of a "
         "step, "
         "or the highest ranks leave")
      ->required();
  add_examples(app, {{"lockstep resize 4711 4", "Give the job of launcher 4711 four ranks"}});
}

int ResizeCommand::run() const {
  check_output(print(stdout, fmt::format("job {}: {}\n", job, ask_to_resize(job, ranks))));
  return 0;
}

}  // namespace lockstep::cli
