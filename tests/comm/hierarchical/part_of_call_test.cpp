// SPDX-License-Identifier: BSD-3-Clause
// Works whose group finds that its ranks differ: when they are started, or later.
#include <functional>

#include <gmock/gmock.h>

#include "lockstep/comm/core/call.h"
#include "lockstep/comm/hierarchical/phases.h"

namespace lockstep::hierarchical {
namespace {

using namespace std::chrono_literals;

// As rank 1 of the work's group makes it, which has made ten calls more than the whole group.
const Call kPeersCall{.collective = Collective::all_reduce, .elements = 7, .number = 12};
const Call kWhole{.collective = Collective::all_reduce, .elements = 8, .number = 2};

[[noreturn]] void differ() {
  Call own = kWhole;
  own.number = kPeersCall.number;
  throw CallsDiffer({}, own, 1, "rank 1", kPeersCall);
}

class DiffersLater final : public Operation {
 public:
  bool poll() override { differ(); }
  void wait(const Deadline&) override { differ(); }
  Deadline default_deadline() const override { return Deadline::after(1s); }
};

// Of a group that consists of the ranks 0 and 2.
Work part_of_whole(const std::function<Work()>& start) {
  return part_of_call(start, 1s, {0, 2}, kWhole);
}

void expect_difference_from_rank_2(const std::function<void()>& run) {
  try {
    run();
    ADD_FAILURE() << "no error";
  } catch (const CallsDiffer& error) {
    EXPECT_EQ(error.peer(), 2);
    EXPECT_EQ(error.own(), kWhole);
    EXPECT_EQ(error.peers_call().elements, kPeersCall.elements);
    EXPECT_EQ(error.peers_call().number, kWhole.number);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("but rank 2 called all_reduce #2"));
  }
}

TEST(PartOfCall, ADifferenceFoundInTheWorkNamesTheRankOfTheWholeGroup) {
  const auto start = [] { return Work(std::make_shared<DiffersLater>()); };
  expect_difference_from_rank_2([&] { part_of_whole(start).poll(); });
  expect_difference_from_rank_2([&] { part_of_whole(start).wait(); });
}

// A group that another rank has ended already refuses the work.
TEST(PartOfCall, ADifferenceFoundAtTheStartNamesTheRankOfTheWholeGroup) {
  expect_difference_from_rank_2([] { part_of_whole([]() -> Work { differ(); }).wait(); });
}

}  // namespace
}  // namespace lockstep::hierarchical
