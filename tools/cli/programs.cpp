// SPDX-License-Identifier: BSD-3-Clause
// Finds verbs, this program's file and the second program beside it.
#include "tools/cli/programs.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>
#include <unistd.h>

#include "lockstep/core/error.h"

namespace lockstep::cli {

const Verb* find_verb(std::string_view name) {
  const auto found = std::ranges::find(kVerbs, name, &Verb::name);
  return found == kVerbs.end() ? nullptr : &*found;
}

std::string this_program() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) return program;
  throw BackendError("cannot tell where this program is: /proc/self/exe: " + error.message() +
                     "; mount /proc");
}

void become_second_program(char** arguments) {
  const std::string program =
      std::filesystem::path(this_program()).parent_path() / "lockstep-torch";
  ::execv(program.c_str(), arguments);
  throw BackendError(fmt::format(
      "{}: cannot execute {}: {}; it is built and installed together with lockstep, beside it",
      arguments[1], program, std::strerror(errno)));
}

}  // namespace lockstep::cli
