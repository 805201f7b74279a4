// SPDX-License-Identifier: BSD-3-Clause
// The two programs of the command, and their verbs. The verbs that need libtorch are in the second
// program, so that `lockstep run` starts without it.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace lockstep::cli {

struct Verb {
  std::string_view name;
  // One line for --help.
  std::string_view summary;
  // Whether lockstep-torch has it.
  bool needs_libtorch = true;
};

// All verbs, in the order of --help. The programs make their subcommands, lists and messages from
// this table.
inline constexpr std::array kVerbs{
    Verb{"new", "Write a project that trains with Lockstep", false},
    Verb{"run", "Start a program as several ranks on this machine", false},
    Verb{"resize", "Give a running elastic job more or fewer ranks", false},
    Verb{"train", "Train one of the recipes"},
    Verb{"compare", "Train a recipe in several modes, one after another, and compare them"},
    Verb{"verify", "Train a recipe on several numbers of ranks, and compare the bits"},
    Verb{"bench", "Measure collectives and training steps"},
    Verb{"doctor", "Report anything that would prevent training on this machine"},
    Verb{"checkpoint", "Inspect, verify, diff and export files of tensors and checkpoints"},
    Verb{"reference", "Write the command's man pages and completion into a folder"},
    Verb{"help", "Explain a subcommand", false}};

// Returns the row of a verb; null if there is none.
const Verb* find_verb(std::string_view name);

// Returns the path of this program's own file, for starting it again. BackendError if /proc does
// not show the path.
std::string this_program();

// Executes lockstep-torch from this program's folder, with the same arguments. Does not return;
// BackendError with the cause if it cannot be executed.
[[noreturn]] void become_second_program(char** arguments);

}  // namespace lockstep::cli
