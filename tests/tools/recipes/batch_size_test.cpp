// SPDX-License-Identifier: BSD-3-Clause
// Batch sizes of a rank and of all ranks, from the options.
#include "tools/recipes/batch_size.h"

#include <gmock/gmock.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(BatchSizes, FollowFromWhatIsGiven) {
  EXPECT_EQ(resolve_batch_sizes({}, {}, 128, 2).global, 256);
  EXPECT_EQ(resolve_batch_sizes(10, {}, 128, 3).rank, 10);
  EXPECT_EQ(resolve_batch_sizes(10, {}, 128, 3).global, 30);
  EXPECT_EQ(resolve_batch_sizes({}, 300, 128, 3).rank, 100);
  EXPECT_EQ(resolve_batch_sizes({}, 300, 128, 3).global, 300);
}

TEST(BatchSizes, RefuseWhatCannotBe) {
  EXPECT_THAT([] { resolve_batch_sizes(5, 10, 128, 2); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("(5)"), HasSubstr("(10)"))));
  EXPECT_THAT(
      [] { resolve_batch_sizes({}, 100, 128, 3); },
      ThrowsMessage<UsageError>(HasSubstr("100 is not a multiple of the number of ranks, 3")));
  EXPECT_THROW(resolve_batch_sizes({}, 0, 128, 3), UsageError);
  EXPECT_THROW(resolve_batch_sizes({}, -3, 128, 3), UsageError);
  EXPECT_THAT([] { resolve_batch_sizes(0, {}, 128, 3); },
              ThrowsMessage<UsageError>(HasSubstr("batch size 0 is not positive")));
}

}  // namespace
}  // namespace lockstep
