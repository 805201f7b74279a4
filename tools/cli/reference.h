// SPDX-License-Identifier: BSD-3-Clause
// `lockstep reference DIR`, which the build runs: writes man pages, and completion for shells, from
// the descriptions that the parser uses.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

struct ReferenceCommand {
  std::string folder;

  // Describes the verb to the parser. The object must outlive it.
  void describe(::CLI::App& app);
  // Writes lockstep.bash, _lockstep (zsh), lockstep.fish, lockstep.1 and lockstep-VERB.1. `whole`
  // has all verbs of both programs.
  void run(const ::CLI::App& whole) const;
};

// Scripts that complete the app's subcommands, options and values.
std::string bash_completion(const ::CLI::App& app);
std::string zsh_completion(const ::CLI::App& app);
std::string fish_completion(const ::CLI::App& app);

// The man page of the app, or of one of its subcommands with all that is below it, as roff.
// `version` is shown in the footer.
std::string man_page(const ::CLI::App& app, const std::string& version);

}  // namespace lockstep::cli
