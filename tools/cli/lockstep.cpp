// SPDX-License-Identifier: BSD-3-Clause
// The `lockstep` command: runs the verbs that need no libtorch, and hands the others to
// lockstep-torch.
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
#include "lockstep/core/process/memory.h"
#include "tools/cli/help.h"
#include "tools/cli/new_command.h"
#include "tools/cli/print.h"
#include "tools/cli/programs.h"
#include "tools/cli/resize_command.h"
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

// Rewrites `lockstep help VERB` as `lockstep VERB --help`, also if there is no such verb.
void ask_for_help(int argc, char** argv) {
  static std::string flag = "--help";
  if (argc < 2 || std::string_view(argv[1]) != "help") return;
  if (argc > 2 && argv[2][0] == '-') return;  // `lockstep help --help`
  std::rotate(argv + 1, argv + 2, argv + argc);
  argv[argc - 1] = flag.data();
}

int main(int argc, char** argv) {
  ask_for_help(argc, argv);
  const Verb* const verb = argc > 1 ? find_verb(argv[1]) : nullptr;
  if (verb != nullptr && verb->needs_libtorch) become_second_program(argv);
  ::CLI::App app("Data-parallel training for C++ on libtorch.", "lockstep");
  use_wrapped_help(app);
  app.set_version_flag("--version", "lockstep " LOCKSTEP_VERSION);
  app.require_subcommand(1);
  for (const Verb& known : kVerbs) {
    app.add_subcommand(std::string(known.name), std::string(known.summary));
  }
  add_first_examples(app);
  RunCommand run;
  ResizeCommand resize;
  NewCommand new_project;
  ::CLI::App& run_app = *app.get_subcommand("run");
  ::CLI::App& resize_app = *app.get_subcommand("resize");
  run.describe(run_app);
  resize.describe(resize_app);
  new_project.describe(*app.get_subcommand("new"));
  describe_help(*app.get_subcommand("help"));
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string name = verb == nullptr ? "" : std::string(verb->name);
  try {
    if (name == "run") {
      arguments.erase(arguments.begin());
      run.take_program(run_app, arguments);
      arguments.insert(arguments.begin(), name);
    }
    // The parser takes arguments from the back.
    std::ranges::reverse(arguments);
    try {
      app.parse(arguments);
    } catch (const ::CLI::ParseError& error) {
      if (error.get_exit_code() != 0) throw_complaint(app, error);
      require_known_subcommand(app, error);
      print_answer(app, error);
      return 0;
    }
    if (run_app.parsed()) return run.run();
    return resize_app.parsed() ? resize.run() : new_project.run();
  } catch (const UsageError& error) {
    const std::string command = name.empty() ? "lockstep" : "lockstep " + name;
    const std::string what = error.what();
    // Errors of the parser have it already.
    const std::string hint = fmt::format(" (see {} --help)", command);
    print(stderr, fmt::format("{}: {}{}\n", command, what, what.ends_with(hint) ? "" : hint));
    return kWrongUse;
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
