// SPDX-License-Identifier: BSD-3-Clause
// Generations, replacements and the end of an elastic job, from ends and joins alone.
#include "lockstep/launch/elastic_members.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

MemberEnd lost(int member) {
  return {.member = member};
}
MemberEnd finished(int member) {
  return {.member = member, .success = true};
}

// The members of the job, of which those in `untrained` have noted no step.
struct Job {
  ElasticMembers members;
  std::set<int> untrained{};

  ElasticChange take(const std::vector<MemberEnd>& ends) {
    return members.take_ends(ends, [this](int member) { return !untrained.contains(member); });
  }
  std::vector<int> now() const { return members.generation().members; }
};

TEST(ElasticMembers, ALostMemberLeavesAndItsPlaceIsTaken) {
  Job job{{3, 1, 3}};
  EXPECT_THAT(job.now(), ElementsAre(0, 1, 2));
  const ElasticChange change = job.take({lost(1)});
  EXPECT_THAT(change.lost, ElementsAre(1));
  EXPECT_TRUE(change.opens);
  EXPECT_EQ(job.members.generation().number, 1);
  EXPECT_THAT(job.now(), ElementsAre(0, 2));
  EXPECT_THAT(change.to_start, ElementsAre(PlacedRank{.rank = 3, .place = 1}));
  EXPECT_FALSE(change.fatal);

  EXPECT_TRUE(job.members.admit({3}));
  EXPECT_EQ(job.members.generation().number, 2);
  EXPECT_THAT(job.now(), ElementsAre(0, 2, 3));
  EXPECT_THAT(job.members.newcomers(), IsEmpty());
}

TEST(ElasticMembers, LossesThatAreNoticedTogetherOpenOneGeneration) {
  Job job{{4, 2, 3}};
  const ElasticChange change = job.take({lost(3), lost(0)});
  EXPECT_EQ(job.members.generation().number, 1);
  EXPECT_THAT(job.now(), ElementsAre(1, 2));
  EXPECT_THAT(change.to_start, ElementsAre(PlacedRank{4, 0}, PlacedRank{5, 3}));
}

TEST(ElasticMembers, ALostNewcomerOpensNoGeneration) {
  Job job{{2, 1, 3}};
  job.take({lost(0)});
  const ElasticChange change = job.take({lost(2)});
  EXPECT_THAT(change.lost, ElementsAre(2));
  EXPECT_FALSE(change.opens);
  EXPECT_THAT(change.to_start, ElementsAre(PlacedRank{3, 0}));
}

TEST(ElasticMembers, WithoutReplacementsTheOthersGoOn) {
  Job job{{3, 1, 1}};
  EXPECT_EQ(job.take({lost(0)}).to_start.size(), 1u);
  EXPECT_EQ(job.members.replacements_left(), 0);
  const ElasticChange change = job.take({lost(1)});
  EXPECT_TRUE(change.opens);
  EXPECT_THAT(change.to_start, IsEmpty());
  EXPECT_FALSE(change.fatal);
}

TEST(ElasticMembers, TheJobFailsBelowTheLeastNumber) {
  Job job{{3, 2, 3}};
  EXPECT_FALSE(job.take({lost(0)}).fatal);
  const ElasticChange change = job.take({lost(2)});
  EXPECT_EQ(change.fatal, 2);
  EXPECT_FALSE(change.opens);
  EXPECT_THAT(change.to_start, IsEmpty());
}

TEST(ElasticMembers, AWrongCommandEndsTheJob) {
  Job job{{2, 1, 3}};
  EXPECT_FALSE(job.take({lost(1)}).fatal);
  EXPECT_EQ(job.take({{.member = 2, .would_repeat = true}}).fatal, 2);
}

TEST(ElasticMembers, AFinishedMemberIsNeitherReplacedNorMissed) {
  Job job{{3, 2, 3}};
  const ElasticChange change = job.take({finished(0)});
  EXPECT_FALSE(change.opens) << "the others may still complete their last step";
  EXPECT_THAT(change.to_start, IsEmpty());
  EXPECT_THAT(change.lost, IsEmpty());
  EXPECT_FALSE(job.take({lost(1)}).fatal) << "one has finished, and one trains";
  EXPECT_THAT(job.now(), ElementsAre(2));
  EXPECT_EQ(job.take({lost(2)}).fatal, 2) << "nobody is left to finish its part";
  EXPECT_THAT(job.members.finishers(), ElementsAre(0));
}

TEST(ElasticMembers, NewcomersThatHaveNotTrainedEndWithTheTraining) {
  Job job{{3, 1, 3}};
  job.take({lost(0), lost(1)});
  job.members.admit({3});
  job.untrained = {3, 4};
  const ElasticChange change = job.take({finished(2)});
  EXPECT_THAT(change.to_end, ElementsAre(4, 3));
  EXPECT_FALSE(job.members.admit({4}));
  const ElasticChange ended = job.take({lost(3), lost(4)});
  EXPECT_THAT(ended.lost, IsEmpty());
  EXPECT_FALSE(ended.fatal);
}

TEST(ElasticMembers, ANewcomerThatFinishesAloneIsNotReplaced) {
  Job job{{2, 1, 3}};
  job.take({lost(0)});
  EXPECT_THAT(job.take({finished(2)}).to_start, IsEmpty());
  EXPECT_THAT(job.members.finishers(), IsEmpty());
  EXPECT_THAT(job.take({lost(1)}).fatal, 1);
}

TEST(ElasticMembers, AMemberThatHasCompletedTheTrainingIsMissedOnlyIfItFails) {
  Job job{ElasticMembers(3, 1, 2)};
  job.members.complete(0);
  EXPECT_THAT(job.now(), ElementsAre(1, 2));
  EXPECT_FALSE(job.members.admit({3}));
  const ElasticChange loss = job.take({lost(2)});
  EXPECT_TRUE(loss.opens);
  EXPECT_THAT(loss.to_start, IsEmpty());
  EXPECT_THAT(job.now(), ElementsAre(1));
  job.members.complete(1);
  EXPECT_FALSE(job.take({finished(1)}).fatal);
  EXPECT_THAT(job.members.finishers(), ElementsAre(1));
  EXPECT_EQ(job.take({lost(0)}).fatal, 0);
}

TEST(ElasticMembers, MoreRanksAreNewcomersThatAreNoReplacements) {
  Job job{{2, 1, 1}};
  const ElasticChange change = job.members.resize(4);
  EXPECT_THAT(change.to_start, ElementsAre(PlacedRank{2, 2}, PlacedRank{3, 3}));
  EXPECT_FALSE(change.opens);
  EXPECT_EQ(job.members.replacements_left(), 1);
  EXPECT_TRUE(job.members.admit({2, 3}));
  EXPECT_THAT(job.take({lost(1)}).to_start, ElementsAre(PlacedRank{4, 1}));
}

TEST(ElasticMembers, OfFewerRanksTheHighestLeaveAndAreNotMissed) {
  Job job{{4, 1, 1}};
  const ElasticChange change = job.members.resize(2);
  EXPECT_THAT(change.leaving, ElementsAre(2, 3));
  EXPECT_TRUE(change.opens);
  EXPECT_EQ(job.members.generation().number, 1);
  EXPECT_THAT(job.now(), ElementsAre(0, 1));
  const ElasticChange ended = job.take({finished(2), lost(3)});
  EXPECT_THAT(ended.lost, IsEmpty());
  EXPECT_FALSE(ended.opens);
  EXPECT_FALSE(job.members.any_finished());
  EXPECT_THAT(job.members.finishers(), IsEmpty());
  EXPECT_THAT(job.take({lost(0)}).to_start, ElementsAre(PlacedRank{4, 0}));
}

TEST(ElasticMembers, NewcomersEndBeforeMembersLeave) {
  Job job{{3, 1, 3}};
  job.take({lost(0)});
  const ElasticChange change = job.members.resize(2);
  EXPECT_THAT(change.to_end, ElementsAre(3));
  EXPECT_THAT(change.leaving, IsEmpty());
  EXPECT_FALSE(change.opens);
  EXPECT_THAT(job.take({lost(3)}).to_start, IsEmpty());
}

TEST(ElasticMembers, AMemberThatLeavesKeepsNoPlace) {
  Job job{{3, 1, 3}};
  job.members.resize(1);
  EXPECT_THAT(job.members.resize(2).to_start, ElementsAre(PlacedRank{3, 1}));
}

TEST(HangingMembers, AreThoseThatKeepTheOthersWaiting) {
  EXPECT_THAT(hanging_members({{0, 9}, {1, 8}, {2, 9}}), ElementsAre(1));
  EXPECT_THAT(hanging_members({{0, 8}, {1, 8}, {2, 9}}), ElementsAre(0, 1));
  EXPECT_THAT(hanging_members({{0, 9}, {1, -1}}), ElementsAre(1)) << "it has not noted a step";
  EXPECT_THAT(hanging_members({{0, 9, true}, {1, 8}, {2, 9}}), ElementsAre(0));
  EXPECT_THAT(hanging_members({{0, 9}, {1, 9}}), ElementsAre(1)) << "one, to free the others";
}

}  // namespace
}  // namespace lockstep
