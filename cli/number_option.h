// SPDX-License-Identifier: BSD-3-Clause
// Options that take numbers, with a message for values that are none.
#pragma once

#include <concepts>
#include <string>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

// The parser's own message does not say what would be right.
template <class Number>
::CLI::Validator is_number() {
  const std::string wanted = std::integral<Number> ? "a whole number" : "a number";
  return ::CLI::Validator(
      [wanted](std::string& text) {
        const bool right = ::CLI::TypeValidator<Number>()(text).empty();
        return right ? std::string() : "give " + wanted + ", not \"" + text + "\"";
      },
      "");
}

}  // namespace lockstep::cli
