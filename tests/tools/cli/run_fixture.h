// SPDX-License-Identifier: BSD-3-Clause
// `lockstep run` from outside; afterwards no process and no file of it may be left.
#pragma once

#include <string>
#include <vector>

#include "support/private_tmpdir.h"
#include "support/process_table.h"
#include "support/program.h"
#include <gtest/gtest.h>
#include <stdlib.h>

namespace lockstep {

class Run : public ::testing::Test {
 protected:
  Run() { ::setenv("LOCKSTEP_TEST_MARK", mark.c_str(), 1); }
  ~Run() override {
    // The keeper of a killed launcher needs a moment; everything else is gone already.
    EXPECT_TRUE(testing::eventually([&] { return testing::count_marked(mark) == 0; }));
    EXPECT_TRUE(testing::eventually([&] { return tmpdir.entries().empty(); }));
    ::unsetenv("LOCKSTEP_TEST_MARK");
  }

  static std::vector<std::string> command(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {LOCKSTEP_PROGRAM, "run"});
    return arguments;
  }

  static testing::Ended run(const std::vector<std::string>& arguments) {
    testing::Ended ended = testing::run_to_end(command(arguments));
    ended.err = testing::without_oversubscription_warning(ended.err);
    return ended;
  }

  const testing::PrivateTmpdir tmpdir;
  const std::string mark = testing::unique_mark();
};

}  // namespace lockstep
