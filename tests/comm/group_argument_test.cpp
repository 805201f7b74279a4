// SPDX-License-Identifier: BSD-3-Clause
// Groups as arguments: by pointer and by reference.
#include "lockstep/comm/group_argument.h"

#include <gmock/gmock.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

int size_of(GroupArgument group) {
  return group.get().size();
}

TEST(GroupArgument, IsAPointerOrAReference) {
  const std::shared_ptr<ProcessGroup> group = make_self_group();
  EXPECT_EQ(size_of(group), 1);
  EXPECT_EQ(size_of(*group), 1);
}

TEST(GroupArgument, KeepsTheGroup) {
  std::shared_ptr<ProcessGroup> group = make_self_group();
  const GroupArgument argument(*group);
  const std::weak_ptr<ProcessGroup> watch = group;
  group.reset();
  EXPECT_FALSE(watch.expired());
  EXPECT_EQ(argument.shared(), watch.lock());
}

TEST(GroupArgument, NamesANullPointer) {
  EXPECT_THAT([] { size_of(std::shared_ptr<ProcessGroup>()); },
              ThrowsMessage<UsageError>(HasSubstr("the group is null")));
  EXPECT_THAT([] { size_of(nullptr); }, ThrowsMessage<UsageError>(HasSubstr("the group is null")));
}

}  // namespace
}  // namespace lockstep
