// SPDX-License-Identifier: BSD-3-Clause
#include "second_program.h"

#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>
#include <unistd.h>

#include "lockstep/core/error.h"

namespace lockstep::cli {

bool is_second_program_verb(std::string_view verb) {
  return verb == "train" || verb == "compare" || verb == "doctor";
}

void become_second_program(char** arguments) {
  std::error_code ignored;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::string program = self.parent_path() / "lockstep-torch";
  ::execv(program.c_str(), arguments);
  throw BackendError(fmt::format(
      "{}: cannot execute {}: {}; it is built and installed together with lockstep, beside it",
      arguments[1], program, std::strerror(errno)));
}

}  // namespace lockstep::cli
