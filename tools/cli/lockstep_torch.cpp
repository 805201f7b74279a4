// SPDX-License-Identifier: BSD-3-Clause
// The second program: the verbs of `lockstep` that need libtorch.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/core/process/memory.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/stack_trace.h"
#include "tools/cli/bench_command.h"
#include "tools/cli/checkpoint_command.h"
#include "tools/cli/compare_command.h"
#include "tools/cli/doctor_command.h"
#include "tools/cli/help.h"
#include "tools/cli/new_command.h"
#include "tools/cli/print.h"
#include "tools/cli/programs.h"
#include "tools/cli/recipe_flags.h"
#include "tools/cli/reference.h"
#include "tools/cli/resize_command.h"
#include "tools/cli/run_command.h"
#include "tools/cli/train_command.h"
#include "tools/cli/verify_command.h"
#include "tools/recipes/local_training.h"

namespace lockstep::cli {
namespace {

constexpr int kWrongUse = 2;

// Reports an error in the form of the results: to the process that started this one, as JSON, or as
// text.
void complain(const std::string& verb, const std::exception& error, bool json) {
  if (started_by_local_training()) {
    try {
      return hand_over(error);
    } catch (const std::exception&) {
      // The process that started this one is gone; only standard error is left.
    }
  }
  // The error may be that standard output cannot be written.
  if (json && write_last(OutputStream::out, error_to_json(error) + "\n")) return;
  write_last(OutputStream::err, fmt::format("lockstep{}: {}\n", verb.empty() ? "" : " " + verb,
                                            without_stack_trace(error.what())));
}

// From the moment it is loaded, Debian's OpenBLAS retries forever if it gets no memory: a process
// without room for it would neither work nor end.
void require_address_space() {
  constexpr std::int64_t kEnough = std::int64_t{1} << 30;
  const auto left = address_space_left();
  if (!left || *left >= kEnough) return;
  throw BackendError(fmt::format(
      "the limit of the address space leaves {:.0f} MiB beside libtorch, whose BLAS may wait "
      "forever for memory; raise it (ulimit -v) by {:.0f} MiB, or limit memory by a "
      "cgroup",
      static_cast<double>(*left) / 0x1p20, static_cast<double>(kEnough - *left) / 0x1p20));
}

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  // Not from the parser: the error may be in the command line itself.
  const bool json = std::ranges::count(arguments, "--json") > 0;
  const std::string verb = arguments.empty() ? "" : arguments.front();
  try {
    require_address_space();
  } catch (const BackendError& error) {
    complain(verb, error, json);
    std::_Exit(1);  // does not pass through the BLAS
  }
  ::CLI::App app("The subcommands of Lockstep that need libtorch.", "lockstep");
  use_wrapped_help(app);
  app.require_subcommand(1);
  const auto describe = [&](std::string_view name, auto& command) -> ::CLI::App& {
    ::CLI::App& sub = *app.add_subcommand(std::string(name), std::string(find_verb(name)->summary));
    command.describe(sub);
    return sub;
  };
  NewCommand new_project;
  RunCommand run;
  ResizeCommand resize;
  TrainCommand train;
  CompareCommand compare;
  VerifyCommand verify;
  BenchCommand bench;
  DoctorCommand doctor;
  CheckpointCommand checkpoint;
  ReferenceCommand reference;
  if (verb == "reference") {
    // It describes the other program's verbs and options, too.
    app.description("Data-parallel training for C++ on libtorch.");
    app.set_version_flag("--version", LOCKSTEP_VERSION);
    add_first_examples(app);
    describe("new", new_project);
    describe("run", run);
    describe("resize", resize);
  }
  ::CLI::App& train_app = describe("train", train);
  ::CLI::App& compare_app = describe("compare", compare);
  ::CLI::App& verify_app = describe("verify", verify);
  ::CLI::App& bench_app = describe("bench", bench);
  ::CLI::App& doctor_app = describe("doctor", doctor);
  ::CLI::App& checkpoint_app = describe("checkpoint", checkpoint);
  ::CLI::App& reference_app = describe("reference", reference);
  if (verb == "reference") {
    describe_help(*app.add_subcommand("help", std::string(find_verb("help")->summary)));
  }
  describe_settings(train_app);
  describe_settings(compare_app);
  describe_settings(verify_app);
  try {
    try {
      std::vector<std::string> expanded = arguments;
      if (verb == train_app.get_name()) expanded = expand_settings(arguments, train_app);
      if (verb == compare_app.get_name()) expanded = expand_settings(arguments, compare_app);
      if (verb == verify_app.get_name()) expanded = expand_settings(arguments, verify_app);
      // The parser takes arguments from the back.
      std::ranges::reverse(expanded);
      app.parse(expanded);
    } catch (const ::CLI::ParseError& error) {
      if (error.get_exit_code() != 0) throw_complaint(app, error);
      require_known_subcommand(app, error);
      print_answer(app, error);
      return 0;
    }
    if (verify_app.parsed()) return verify.run();
    if (bench_app.parsed()) return bench.run();
    if (doctor_app.parsed()) return doctor.run();
    if (checkpoint_app.parsed()) return checkpoint.run();
    if (reference_app.parsed()) {
      reference.run(app);
      return 0;
    }
    return train_app.parsed() ? train.run(arguments) : compare.run(arguments);
  } catch (const UsageError& error) {
    complain(verb, error, json);
    return kWrongUse;
  } catch (const TrainingStopped& error) {
    complain(verb, error, json);
    return 128 + error.signal();
  } catch (const std::exception& error) {
    complain(verb, error, json);
    return 1;
  }
}

}  // namespace
}  // namespace lockstep::cli

int main(int argc, char** argv) {
  return lockstep::cli::main(argc, argv);
}
