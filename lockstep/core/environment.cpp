// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/core/environment.h"

#include <charconv>
#include <cstdlib>

#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep {

std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<int> environment_int(const char* name) {
  const auto text = environment(name);
  if (!text) return std::nullopt;
  int value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size()) {
    throw UsageError(fmt::format(
        "{}=\"{}\" in the environment is not a whole number; set it to one, or unset it", name,
        *text));
  }
  return value;
}

}  // namespace lockstep
