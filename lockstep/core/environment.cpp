// SPDX-License-Identifier: BSD-3-Clause
// Reads integer variables, and refuses malformed ones with a UsageError.
#include "lockstep/core/environment.h"

#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

// `number` is the part of `text` that must be a number.
int read_variable(const char* name, const std::string& text, std::string_view number,
                  const Range<int>& range) {
  if (const auto value = parse_number(number, range)) return *value;
  throw UsageError(fmt::format("{}=\"{}\" in the environment: give {}, or unset it", name, text,
                               in_words(range)));
}

}  // namespace

std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<int> environment_int(const char* name, const Range<int>& range) {
  const auto text = environment(name);
  if (!text) return std::nullopt;
  return read_variable(name, *text, *text, range);
}

std::optional<int> omp_num_threads() {
  constexpr const char* kName = "OMP_NUM_THREADS";
  const auto text = environment(kName);
  if (!text) return std::nullopt;
  return read_variable(kName, *text, text->substr(0, text->find(',')), kFrom1);
}

}  // namespace lockstep
