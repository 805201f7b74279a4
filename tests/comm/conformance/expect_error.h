// SPDX-License-Identifier: BSD-3-Clause
// Expecting an error of a type, with a message that says who, what and why.
#pragma once

#include <exception>
#include <regex>
#include <string>
#include <typeinfo>

#include <gtest/gtest.h>

#include "lockstep/comm/core/call.h"
#include "lockstep/core/error.h"

namespace lockstep::testing {

// Runs the function, which must throw exactly this type, and returns the error. To users, that
// calls differ is a UsageError.
template <class Expected, class Function>
Expected error_of(const Function& function, const std::string& what, Expected otherwise) {
  try {
    function();
    ADD_FAILURE() << what << ": no error at all";
  } catch (const Expected& error) {
    const bool differ =
        std::is_same_v<Expected, UsageError> && typeid(error) == typeid(CallsDiffer);
    if (typeid(error) == typeid(Expected) || differ) return error;
    ADD_FAILURE() << what << ": an error of type " << typeid(error).name() << ": " << error.what();
  } catch (const std::exception& error) {
    // libtorch's errors carry a stack trace below their first line.
    const std::string text = error.what();
    ADD_FAILURE() << what << ": an error of type " << typeid(error).name() << ": "
                  << text.substr(0, text.find('\n'));
  }
  return otherwise;
}

// The message must match all of the patterns, each somewhere, in any case of letters.
inline void expect_message(const std::string& message, const std::vector<std::string>& patterns,
                           const std::string& what) {
  for (const auto& pattern : patterns) {
    if (std::regex_search(message, std::regex(pattern, std::regex::icase))) continue;
    ADD_FAILURE() << what << ": the message does not match \"" << pattern << "\": " << message;
  }
}

// Does both. Returns the message.
template <class Expected, class Function>
std::string expect_error(const std::string& what, const std::vector<std::string>& patterns,
                         const Function& function) {
  const Expected error = [&] {
    if constexpr (std::is_same_v<Expected, PeerLost>) {
      return error_of<PeerLost>(function, what, PeerLost(-1, ""));
    } else {
      return error_of<Expected>(function, what, Expected(""));
    }
  }();
  const std::string message = error.what();
  if (!message.empty()) expect_message(message, patterns, what);
  return message;
}

}  // namespace lockstep::testing
