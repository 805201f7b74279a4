// SPDX-License-Identifier: BSD-3-Clause
// Tells the processes that a test starts from all others, and wants none of them left behind.
#pragma once

#include <string>
#include <vector>

#include "support/process_table.h"
#include <gtest/gtest.h>
#include <stdlib.h>

namespace lockstep::testing {

// A member of a fixture: what is started while it lives has its mark in the environment.
class MarkedProcesses {
 public:
  MarkedProcesses() { ::setenv(kVariable, mark_.c_str(), 1); }
  ~MarkedProcesses() {
    EXPECT_TRUE(eventually([&] { return count_marked(mark_) == 0; })) << "a process is left";
    ::unsetenv(kVariable);
  }
  MarkedProcesses(const MarkedProcesses&) = delete;
  MarkedProcesses& operator=(const MarkedProcesses&) = delete;

  // Those that were executed with all these variables, each as NAME=value.
  std::vector<pid_t> with(std::vector<std::string> variables) const {
    variables.push_back(std::string(kVariable) + "=" + mark_);
    return processes_with(variables);
  }

 private:
  static constexpr const char* kVariable = "LOCKSTEP_TEST_MARK";
  const std::string mark_ = unique_mark();
};

}  // namespace lockstep::testing
