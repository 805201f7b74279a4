// SPDX-License-Identifier: BSD-3-Clause
// What a function returns or throws on rank 0 reaches every rank.
#include "lockstep/comm/on_rank_0.h"

#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::StrEq;
using ::testing::ThrowsMessage;

TEST(OnRank0, EveryRankGetsTheText) {
  testing::run_rank_threads(3, [](const auto& group) {
    const std::string text = text_of_rank_0(*group, [&] {
      EXPECT_EQ(group->rank(), 0);
      return std::string("/data\xff");
    });
    EXPECT_EQ(text, "/data\xff");
  });
}

TEST(OnRank0, EveryRankThrowsItsErrorAndGoesOn) {
  testing::run_rank_threads(3, [](const auto& group) {
    EXPECT_THAT(
        [&] {
          on_rank_0(*group, [] {
            throw UsageError({.component = "Trace", .rank = 0, .size = 3}, "no such folder",
                             "make it");
          });
        },
        ThrowsMessage<UsageError>(StrEq("[Trace] rank 0 of 3: no such folder; make it")));
    EXPECT_THAT([&] { on_rank_0(*group, [] { throw std::runtime_error("no space left"); }); },
                ThrowsMessage<BackendError>(StrEq("no space left")));
    bool called = false;
    on_rank_0(*group, [&] { called = true; });
    EXPECT_EQ(called, group->rank() == 0);
  });
}

}  // namespace
}  // namespace lockstep
