// SPDX-License-Identifier: BSD-3-Clause
// Writes text to a stream, and reports what could not be written.
#include "tools/cli/print.h"

#include <cerrno>
#include <cstring>
#include <sstream>

#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep::cli {

int print(std::FILE* stream, std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stream) == text.size();
  return written && std::fflush(stream) == 0 ? 0 : errno;
}

void check_output(int error) {
  if (error == 0) return;
  throw BackendError(fmt::format("cannot write standard output: {}", std::strerror(error)));
}

void print_answer(const ::CLI::App& app, const ::CLI::ParseError& asked) {
  std::ostringstream text;
  app.exit(asked, text, text);
  check_output(print(stdout, text.str()));
}

}  // namespace lockstep::cli
