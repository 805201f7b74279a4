// SPDX-License-Identifier: BSD-3-Clause
// The verbs that need libtorch are in a second program, so that `lockstep run` starts without it.
#pragma once

#include <string_view>

namespace lockstep::cli {

// True for a verb that lockstep-torch knows.
bool is_second_program_verb(std::string_view verb);

// Executes lockstep-torch from this program's folder, with the same arguments. Does not return;
// BackendError with the cause if it cannot be executed.
[[noreturn]] void become_second_program(char** arguments);

}  // namespace lockstep::cli
