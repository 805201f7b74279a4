// SPDX-License-Identifier: BSD-3-Clause
// Which backend "auto" takes, by where the ranks are.
#include "lockstep/comm/backends.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(ChooseBackend, GoesByWhereRanksAre) {
  const auto chosen = [](const Placement& placement) { return choose_backend(placement).backend; };
  EXPECT_EQ(chosen({}), "self");
  EXPECT_EQ(chosen({.ranks = 4}), "shm");
  EXPECT_EQ(chosen({.ranks = 4, .hosts = 2}), "hierarchical");
  EXPECT_EQ(chosen({.ranks = 4, .hosts = 4}), "gloo");
  EXPECT_EQ(chosen({.ranks = 4, .gpu_for_each_rank = true}), "nccl");
  EXPECT_EQ(chosen({.ranks = 4, .hosts = 2, .gpu_for_each_rank = true}), "nccl");
  EXPECT_EQ(chosen({.ranks = 4, .hosts = 2, .between_hosts = "mpi"}), "hierarchical:mpi");
  EXPECT_EQ(chosen({.ranks = 4, .hosts = 4, .between_hosts = "mpi"}), "mpi");
  EXPECT_EQ(choose_backend({.ranks = 4, .hosts = 2}).why, "the ranks are on 2 hosts");
}

}  // namespace
}  // namespace lockstep
