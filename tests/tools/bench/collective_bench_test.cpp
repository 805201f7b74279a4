// SPDX-License-Identifier: BSD-3-Clause
// The measurement of collectives, and the bounds that it reports.
#include "tools/bench/collective_bench.h"

#include "tests/support/thread_group.h"
#include <gtest/gtest.h>

#include "lockstep/core/error.h"

namespace lockstep::bench {
namespace {

using testing::run_rank_threads;

TEST(CollectiveBench, FindsNothingWrong) {
  for (const auto collective : {Collective::all_reduce, Collective::all_gather,
                                Collective::broadcast, Collective::reduce_scatter}) {
    // Broadcast and all_reduce in the group's memory, the others in ordinary one.
    const bool from_group =
        collective == Collective::broadcast || collective == Collective::all_reduce;
    run_rank_threads(3, [&](const std::shared_ptr<ProcessGroup>& group) {
      const auto row =
          measure(*group, {.collective = collective, .from_group = from_group}, 10'000);
      EXPECT_EQ(row.wrong, 0) << name(collective);
      EXPECT_LE(row.bytes, 10'000);
      EXPECT_GT(row.bytes, 10'000 - 3 * 4);
      EXPECT_GT(row.time_us_min, 0);
      EXPECT_GE(row.time_us_median, row.time_us_min);
      EXPECT_GT(row.percent_of_bound, 0);
      EXPECT_NEAR(row.algbw_gb_s, row.bytes / row.time_us_median / 1e3, 1e-9);
      EXPECT_NEAR(row.busbw_gb_s, row.algbw_gb_s * bus_factor(collective, 3), 1e-9);
    });
  }
}

TEST(CollectiveBench, MeasuresTypesOperationsAndTheRing) {
  for (const auto type : {at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kByte, at::kBool}) {
    run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      const CollectiveBench bench{.type = type, .op = ReduceOp::product};
      EXPECT_EQ(measure(*group, bench, 1024).wrong, 0) << type;
    });
  }
  run_rank_threads(3, [&](const std::shared_ptr<ProcessGroup>& group) {
    const CollectiveBench bench{
        .type = at::kBFloat16, .op = ReduceOp::mean, .algorithm = Algorithm::ring};
    EXPECT_EQ(measure(*group, bench, 4096).wrong, 0);
  });
}

TEST(CollectiveBench, RefusesWhatTheGroupRefuses) {
  run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    const CollectiveBench bench{.type = at::kInt, .op = ReduceOp::mean};
    EXPECT_THROW(measure(*group, bench, 1024), UsageError);
  });
}

TEST(LeastTraffic, IsWhatMustBeReadAndWritten) {
  EXPECT_EQ(least_traffic(Collective::all_reduce, 4, 100), 800);
  EXPECT_EQ(least_traffic(Collective::all_gather, 4, 100), 800);
  EXPECT_EQ(least_traffic(Collective::broadcast, 4, 100), 600);
  EXPECT_EQ(least_traffic(Collective::reduce_scatter, 4, 100), 500);
}

TEST(BusFactor, IsThatOfNcclTests) {
  EXPECT_EQ(bus_factor(Collective::all_reduce, 4), 1.5);
  EXPECT_EQ(bus_factor(Collective::all_gather, 4), 0.75);
  EXPECT_EQ(bus_factor(Collective::reduce_scatter, 4), 0.75);
  EXPECT_EQ(bus_factor(Collective::broadcast, 4), 1);
}

}  // namespace
}  // namespace lockstep::bench
