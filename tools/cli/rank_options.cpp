// SPDX-License-Identifier: BSD-3-Clause
// Describes --backend, with a line of help for each backend, and --timeout.
#include "tools/cli/rank_options.h"

#include <cstdint>

#include <fmt/format.h>

#include "lockstep/comm/backends.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/rendezvous.h"
#include "tools/cli/option_values.h"

namespace lockstep::cli {

void RankOptions::describe(::CLI::App& app) {
  app.option_defaults()->group("Ranks and devices");
  std::string help = fmt::format(
      "Backend that joins the ranks (default: {})\n  auto: the fastest that joins them", backend);
  for (const BackendRow& row : backend_rows()) {
    help.append("\n  ").append(row.name).append(": ").append(row.help);
  }
  choose_from(app.add_option("--backend", backend, help), backends())->type_name("BACKEND");
  const auto set = [this](double seconds) {
    timeout = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
  };
  add_number_to<double>(app, "--timeout", set, {0.001, 1e9},
                        fmt::format("Longest wait for other ranks (default: {})",
                                    std::chrono::duration<double>(timeout).count()))
      ->type_name("SECONDS");
}

int ranks_of_launcher() {
  const auto member = membership_in_environment();
  return member ? member->world_size : 1;
}

void require_no_launcher(std::string_view verb) {
  const int started = ranks_of_launcher();
  if (started <= 1) return;
  throw UsageError(
      fmt::format("a launcher has started this process as one of {} ranks, but {} starts its own "
                  "ranks; run it once, outside any launcher",
                  started, verb));
}

}  // namespace lockstep::cli
