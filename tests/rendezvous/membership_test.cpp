// SPDX-License-Identifier: BSD-3-Clause
// What a membership says about its ranks' machines, in a job and in parts of it.
#include "lockstep/rendezvous/membership.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

Membership of_machines(const std::vector<std::string>& machines) {
  Membership member;
  member.world_size = static_cast<int>(machines.size());
  member.local_world_size = 2;
  for (const std::string& machine : machines) member.processes.push_back({.machine = machine});
  return member;
}

TEST(Membership, KnowsWhetherThePartsOfAJobAreOnOneMachine) {
  const Membership job = of_machines({"one", "one", "two", "two"});
  EXPECT_FALSE(job.on_one_machine());
  EXPECT_TRUE(job.part({0, 1}).on_one_machine());
  EXPECT_FALSE(job.part({0, 2}).on_one_machine());
  EXPECT_FALSE(job.part({0, 1, 3}).on_one_machine());
  EXPECT_TRUE(job.part({3, 1, 2}).part({2, 0}).on_one_machine());
  EXPECT_FALSE(job.part({3, 1, 2}).part({0, 1}).on_one_machine());
}

TEST(Membership, MachinesThatAreUnknownAreNotOne) {
  EXPECT_FALSE(of_machines({"", ""}).on_one_machine());
  EXPECT_FALSE(of_machines({"one", ""}).on_one_machine());
  Membership before_roll_call;
  before_roll_call.world_size = 2;
  before_roll_call.local_world_size = 2;
  EXPECT_FALSE(before_roll_call.on_one_machine());
}

}  // namespace
}  // namespace lockstep
