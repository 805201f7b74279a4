// SPDX-License-Identifier: BSD-3-Clause
// The `lockstep` command: runs `run` itself, and hands all other verbs to lockstep-torch.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/process/freed_memory.h"
#include "tools/cli/print.h"
#include "tools/cli/programs.h"
#include "tools/cli/run_command.h"

namespace lockstep::cli {
namespace {

constexpr int kWrongUse = 2;

// A descriptor opened later must not become a standard stream that the caller had closed.
void open_standard_streams() {
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

// Programs started from here inherit these variables; values that the user has set stay.
void set_environment() {
  // libtorch and OpenBLAS each have a pool of threads on the same cores. While one pool computes,
  // the other must not spin (docs/modes.md, Threads).
  ::setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0);
  for (const auto& [name, value] : keep_freed_memory_environment()) {
    ::setenv(name.c_str(), value.c_str(), /*overwrite=*/0);
  }
}

// Describes the verbs of the second program for --help.
std::string footer() {
  std::string text =
      "Subcommands of lockstep-torch, which is installed beside this program; each has its own "
      "--help:";
  for (const Verb& verb : kVerbs) {
    if (verb.needs_libtorch) text += fmt::format("\n  {:<10}  {}", verb.name, verb.summary);
  }
  return text;
}

// "run, train and compare", with all verbs.
std::string names_of_verbs() {
  std::string names;
  for (const Verb& verb : kVerbs) {
    const bool is_last = &verb == &kVerbs.back();
    names += fmt::format("{}{}", names.empty() ? "" : is_last ? " and " : ", ", verb.name);
  }
  return names;
}

int complain(const ::CLI::App& run, const std::string& what) {
  const bool in_run = run.parsed();
  const char* verb = in_run ? " run" : "";
  print(stderr, fmt::format("lockstep{}: {} (see lockstep{} --help)\n", verb, what, verb));
  return kWrongUse;
}

int main(int argc, char** argv) {
  const Verb* const verb = argc > 1 ? find_verb(argv[1]) : nullptr;
  if (verb != nullptr && verb->needs_libtorch) become_second_program(argv);
  ::CLI::App app("Data-parallel training for C++ on libtorch.", "lockstep");
  app.set_version_flag("--version", "lockstep " LOCKSTEP_VERSION);
  app.require_subcommand(1);
  RunCommand command;
  const Verb& run_verb = *find_verb("run");
  ::CLI::App& run = *app.add_subcommand(std::string(run_verb.name), std::string(run_verb.summary));
  command.describe(run);
  app.footer(footer());
  std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (!arguments.empty() && arguments.front() == run.get_name()) {
      arguments.erase(arguments.begin());
      command.take_program(run, arguments);
      arguments.insert(arguments.begin(), run.get_name());
    }
    if (!arguments.empty() && !arguments.front().starts_with('-') &&
        arguments.front() != run.get_name()) {
      return complain(run, fmt::format("there is no subcommand {}; the subcommands are {}",
                                       arguments.front(), names_of_verbs()));
    }
    // The parser takes arguments from the back.
    std::ranges::reverse(arguments);
    app.parse(arguments);
    return command.run();
  } catch (const ::CLI::ParseError& error) {
    if (error.get_exit_code() != 0) return complain(run, error.what());
    print_answer(app, error);
    return 0;
  } catch (const UsageError& error) {
    return complain(run, error.what());
  }
}

}  // namespace
}  // namespace lockstep::cli

int main(int argc, char** argv) {
  lockstep::cli::open_standard_streams();
  // The doctor shows what programs find that are started without this one.
  if (argc < 2 || std::string_view(argv[1]) != "doctor") lockstep::cli::set_environment();
  try {
    return lockstep::cli::main(argc, argv);
  } catch (const std::exception& error) {
    lockstep::cli::print(stderr, fmt::format("lockstep: {}\n", error.what()));
    return 1;
  }
}
