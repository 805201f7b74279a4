// SPDX-License-Identifier: BSD-3-Clause
// A test program that is started by hand has the variables that ctest sets.
#include <filesystem>
#include <string>

#include "support/program.h"
#include <gmock/gmock.h>
#include <stdlib.h>

namespace lockstep::testing {
namespace {

TEST(OneThread, DISABLED_IsWhatTheEnvironmentSays) {
  EXPECT_STREQ(::getenv("OMP_NUM_THREADS"), "1");
  EXPECT_STREQ(::getenv("OPENBLAS_NUM_THREADS"), "1");
}

TEST(OneThread, IsSetWhereNobodyHasSetIt) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const Ended ended =
      run_to_end({"env", "-u", "OMP_NUM_THREADS", "-u", "OPENBLAS_NUM_THREADS", self,
                  "--gtest_also_run_disabled_tests", "--gtest_filter=OneThread.DISABLED_*"});
  EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
  EXPECT_THAT(ended.out, ::testing::HasSubstr("1 test from 1 test suite ran"));
}

}  // namespace
}  // namespace lockstep::testing
