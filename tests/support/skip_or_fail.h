// SPDX-License-Identifier: BSD-3-Clause
// Tests that not every machine can run.
#pragma once

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

namespace lockstep::testing {

// Ends SetUp or a test: `return skip_or_fail(why)`. With LOCKSTEP_TESTS_NEED_ALL set, as .ci/run
// has it, a test that cannot run here fails instead of being skipped.
inline void skip_or_fail(const std::string& reason) {
  if (std::getenv("LOCKSTEP_TESTS_NEED_ALL") != nullptr) FAIL() << reason;
  GTEST_SKIP() << reason;
}

}  // namespace lockstep::testing
