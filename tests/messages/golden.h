// SPDX-License-Identifier: BSD-3-Clause
// Compares errors with their full text, as a user reads it.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "tests/support/thread_group.h"
#include <gtest/gtest.h>

#include "lockstep/core/error.h"

namespace lockstep::testing {

// Process ids, seconds and folders differ from run to run.
inline std::string masked(std::string text) {
  text = std::regex_replace(text, std::regex("pid [0-9]+"), "pid N");
  text = std::regex_replace(text, std::regex("/[^ ]*/lockstep-test-[A-Za-z0-9]+"), "FOLDER");
  return std::regex_replace(text, std::regex("[0-9]+\\.[0-9]+ s\\b"), "T s");
}

inline std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return masked(error.what());
  } catch (const std::exception& error) {
    return error.what();
  }
  return "(no error)";
}

// The message of rank 0 of `size` ranks that run the function.
inline std::string on_rank_0(int size,
                             const std::function<void(std::shared_ptr<ProcessGroup>)>& act,
                             ThreadGroupOptions options = {}) {
  std::string message;
  run_rank_threads(
      size,
      [&](const std::shared_ptr<ProcessGroup>& group) {
        const std::string own = message_of([&] { act(group); });
        if (group->rank() == 0) message = own;
      },
      options);
  return message;
}

// What a program does wrong, and the message that it gets.
struct Golden {
  std::function<void()> act;
  std::string message;
};

// Each message begins with `beginning`, which the cases leave out.
inline void expect_messages(const std::string& beginning, const std::vector<Golden>& cases) {
  for (const auto& [act, message] : cases) EXPECT_EQ(message_of(act), beginning + message);
}

}  // namespace lockstep::testing
