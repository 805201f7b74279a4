// SPDX-License-Identifier: BSD-3-Clause
// Executes lockstep-torch from this program's folder.
#include "second_program.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "this_program.h"
#include <fmt/format.h>
#include <unistd.h>

#include "lockstep/core/error.h"

namespace lockstep::cli {

bool is_second_program_verb(std::string_view verb) {
  constexpr std::array<std::string_view, 5> kVerbs{"train", "compare", "bench", "doctor",
                                                   "checkpoint"};
  return std::ranges::count(kVerbs, verb) > 0;
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
