// SPDX-License-Identifier: BSD-3-Clause
// Training on local ranks, one of which is killed.
#include "tools/recipes/local_training.h"

#include <gmock/gmock.h>

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(LocalTraining, ARankThatASignalKilledIsLost) {
  try {
    run_local_training(
        {.program = {"sh", "-c", "test $RANK = 1 && kill -9 $$; sleep 1000"}, .ranks = 2});
    FAIL() << "it returned";
  } catch (const PeerLost& error) {
    EXPECT_EQ(error.rank(), 1);
    EXPECT_THAT(error.what(), HasSubstr("signal 9 (SIGKILL)"));
  }
}

}  // namespace
}  // namespace lockstep
