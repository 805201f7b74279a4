// SPDX-License-Identifier: BSD-3-Clause
// That hosts leave nothing on this machine.
#include "support/hosts.h"

#include <stdexcept>

#include "support/program.h"
#include "support/skip_or_fail.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace lockstep::testing {
namespace {

TEST(Hosts, AreRemovedIfOneCannotBeMade) {
  if (const auto why_not = Hosts::why_not(); !why_not.empty()) return skip_or_fail(why_not);
  const auto spaces = [] { return run_to_end({"ip", "netns", "list"}).out; };
  const auto of_this_process = ::testing::ContainsRegex(fmt::format("ls{}[nh]", ::getpid()));
  {
    const Hosts hosts(1, 1000);
    EXPECT_THAT(spaces(), of_this_process);
  }
  EXPECT_THAT(spaces(), ::testing::Not(of_this_process));
  EXPECT_THROW(Hosts(1, 0), std::runtime_error);  // tc wants a rate
  EXPECT_THAT(spaces(), ::testing::Not(of_this_process));
}

}  // namespace
}  // namespace lockstep::testing
