// SPDX-License-Identifier: BSD-3-Clause
// Which generation follows when members of several hosts, or whole hosts, are lost or join.
#include "lockstep/launch/elastic_cluster.h"

#include <gmock/gmock.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Cluster : public ::testing::Test {
 protected:
  // Two hosts with two ranks each: "a" has the members 0 and 1, "b" 2 and 3.
  Cluster() { job.found({"a", "b"}, 2, live); }

  void settle() { job.settle(live, 2); }
  void train() {
    for (auto& [name, host] : live) host.trains = job.generation.number;
  }

  LiveHosts live{{"a", {.terms = "terms", .store = "a:1"}},
                 {"b", {.terms = "terms", .store = "b:1"}}};
  ClusterJob job{.terms = "terms"};
};

TEST_F(Cluster, BeginsWithAllHosts) {
  EXPECT_EQ(job.generation.number, 0);
  EXPECT_THAT(job.generation.members, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(job.generation.store, "a:1");
  EXPECT_THAT(job.members_on("b"), ElementsAre(2, 3));
  const ClusterJob before = job;
  settle();
  EXPECT_EQ(job, before);
}

TEST_F(Cluster, GoesOnWithoutALostMember) {
  job.end(1, false, "killed");
  job.add_newcomers("a", 1);
  settle();
  EXPECT_EQ(job.generation.number, 1);
  EXPECT_THAT(job.generation.members, ElementsAre(0, 2, 3));
  EXPECT_THAT(job.members_on("a"), ElementsAre(0, 4));
}

TEST_F(Cluster, GoesOnWithoutALostHostAndMeetsElsewhere) {
  live.erase("a");
  settle();
  EXPECT_EQ(job.generation.number, 1);
  EXPECT_THAT(job.generation.members, ElementsAre(2, 3));
  EXPECT_EQ(job.generation.store, "b:1");
  EXPECT_THAT(job.members_on("a"), IsEmpty());
}

TEST_F(Cluster, EndsWithTooFewMembers) {
  job.end(0, false, "killed");
  live.erase("b");
  settle();
  EXPECT_THAT(job.failure, HasSubstr("1 rank is left to train, and --elastic wants at least 2"));
  EXPECT_EQ(job.generation.number, 0);
}

TEST_F(Cluster, AdmitsNewcomersOnceAllHostsTrain) {
  live["c"] = {.store = "c:1"};
  job.add_newcomers("c", 2);
  live["c"].joined = {5, 4};
  settle();
  EXPECT_EQ(job.generation.number, 0) << "nobody has trained";
  live["a"].trains = 0;
  settle();
  EXPECT_EQ(job.generation.number, 0) << "b has not trained";
  train();
  settle();
  EXPECT_EQ(job.generation.number, 1);
  EXPECT_THAT(job.generation.members, ElementsAre(0, 1, 2, 3, 4, 5));
  train();
  settle();
  EXPECT_EQ(job.generation.number, 1);
}

TEST_F(Cluster, AdmitsNobodyWhoseHostIsLost) {
  live["c"] = {.store = "c:1"};
  job.add_newcomers("c", 1);
  live["c"].joined = {4};
  train();
  live.erase("c");
  settle();
  EXPECT_EQ(job.generation.number, 0);
  EXPECT_FALSE(job.hosts.contains(4));
}

TEST_F(Cluster, BelievesNoHostAboutMembersOfOthers) {
  live["b"].joined = {0, 2, 7};
  train();
  settle();
  EXPECT_EQ(job.generation.number, 0);
}

TEST_F(Cluster, LosesNobodyWhoHasFinished) {
  for (const int member : {0, 1}) job.complete(member);
  for (const int member : {0, 1}) job.end(member, true, "");
  live.erase("a");
  settle();
  EXPECT_EQ(job.generation.number, 0);
  EXPECT_EQ(job.failure, "");
  // The rest may still lose one, and go on.
  job.end(2, false, "killed");
  settle();
  EXPECT_EQ(job.generation.number, 1);
  EXPECT_THAT(job.generation.members, ElementsAre(3));
}

TEST_F(Cluster, AdmitsNobodyAfterAMemberHasFinished) {
  job.add_newcomers("a", 1);
  live["a"].joined = {4};
  train();
  job.complete(3);
  settle();
  EXPECT_EQ(job.generation.number, 0);
  job.dismiss(4);
  settle();
  EXPECT_EQ(job.generation.number, 0);
  EXPECT_FALSE(job.hosts.contains(4));
}

TEST_F(Cluster, FailsIfWorkAfterTheTrainingIsLost) {
  job.complete(0);
  live.erase("a");
  settle();
  EXPECT_THAT(job.failure, HasSubstr("member 0, which had completed the training, was lost"));
}

TEST_F(Cluster, GrowsOnTheHostsWithTheFewestRanks) {
  job.end(3, false, "killed");
  job.resize(6);
  settle();
  EXPECT_EQ(job.ranks(), 6);
  EXPECT_THAT(job.members_on("a"), ElementsAre(0, 1, 5));
  EXPECT_THAT(job.members_on("b"), ElementsAre(2, 4, 6));
  EXPECT_EQ(job.wish, 0);
  train();
  live["a"].joined = {5};
  settle();
  EXPECT_THAT(job.generation.members, ElementsAre(0, 1, 2, 5));
}

TEST_F(Cluster, GrowsOnNoHostThatIsOthersOrAboutToEnd) {
  live["c"] = {.terms = "others", .store = "c:1"};
  live["e"] = {.terms = "terms", .store = "e:1", .waits = false};
  live["d"] = {.terms = "terms", .store = "d:1"};
  job.wish = 5;
  settle();
  for (const char* host : {"c", "e"}) EXPECT_THAT(job.members_on(host), IsEmpty());
  EXPECT_THAT(job.members_on("d"), ElementsAre(4));
}

TEST_F(Cluster, ShrinksOnceAllTrain) {
  job.resize(2);
  EXPECT_EQ(job.limit, 2) << "no further host may add ranks";
  settle();
  EXPECT_EQ(job.generation.number, 0);
  train();
  settle();
  EXPECT_EQ(job.generation.number, 1);
  EXPECT_THAT(job.generation.members, ElementsAre(0, 1));
  EXPECT_THAT(job.leaving, ElementsAre(2, 3));
  EXPECT_EQ(job.ranks(), 2);
  // Nobody misses them.
  job.end(2, false, "killed");
  live.erase("b");
  settle();
  EXPECT_EQ(job.generation.number, 1);
  EXPECT_EQ(job.failure, "");
  EXPECT_EQ(job.ranks(), 2);
  EXPECT_THAT(job.leaving, ElementsAre(2, 3)) << "so that nobody takes them for lost";
}

TEST_F(Cluster, ShrinksByNewcomersFirst) {
  job.add_newcomers("b", 2);
  live["b"].joined = {4};
  job.resize(5);
  settle();
  EXPECT_THAT(job.members_on("b"), ElementsAre(2, 3, 4));
  EXPECT_EQ(job.wish, 0);
  job.wish = 3;
  train();
  settle();
  EXPECT_THAT(job.generation.members, ElementsAre(0, 1, 2));
  EXPECT_THAT(job.members_on("b"), ElementsAre(2, 3));
}

TEST_F(Cluster, KeepsItsSizeAfterAMemberHasFinished) {
  job.complete(0);
  job.resize(4);
  train();
  settle();
  EXPECT_EQ(job.wish, 0);
  EXPECT_THAT(job.generation.members, ElementsAre(1, 2, 3));
  EXPECT_EQ(job.next_member, 4);
}

// What the hosts of members that stand still write.
class StandingCluster : public Cluster {
 protected:
  StandingCluster() {
    train();
    live["a"].progress = {{0, 11}, {1, 11}};
    live["b"].progress = {{2, 10}, {3, 11}};
    for (auto& [name, host] : live) host.stands_still = 0;
  }
};

TEST_F(StandingCluster, KnowsForWhomTheOthersWait) {
  settle();
  EXPECT_THAT(job.hanging, ElementsAre(2));
  live["b"].stands_still = -1;
  settle();
  EXPECT_THAT(job.hanging, IsEmpty()) << "it goes on";
}

TEST_F(StandingCluster, KnowsWhoIsStopped) {
  live["a"].progress[1].stopped = true;
  settle();
  EXPECT_THAT(job.hanging, ElementsAre(1));
}

TEST_F(StandingCluster, WaitsUntilAllStandStill) {
  live["b"].stands_still = -1;
  settle();
  EXPECT_THAT(job.hanging, IsEmpty());
}

TEST_F(StandingCluster, BelievesNoHostAboutProgressOfOthers) {
  live["a"].progress.push_back({3, 1});
  live["a"].progress.push_back({9, 1});
  settle();
  EXPECT_THAT(job.hanging, ElementsAre(2));
}

TEST_F(StandingCluster, NeedsNoHostWithoutRanks) {
  live["c"] = {.store = "c:1"};
  job.add_newcomers("c", 1);
  settle();
  EXPECT_THAT(job.hanging, ElementsAre(2));
}

TEST_F(StandingCluster, CountsMembersThatLeave) {
  job.wish = 3;
  settle();
  EXPECT_EQ(job.generation.number, 1);
  EXPECT_THAT(job.hanging, IsEmpty()) << "of the new generation, nothing is known";
  live["a"].stands_still = live["b"].stands_still = 1;
  live["b"].progress = {{2, 11}, {3, 10}};
  settle();
  EXPECT_THAT(job.hanging, ElementsAre(3));
}

TEST_F(StandingCluster, ForgetsItInTheNextGeneration) {
  settle();
  job.end(2, false, "killed by its launcher");
  settle();
  EXPECT_EQ(job.generation.number, 1);
  EXPECT_THAT(job.hanging, IsEmpty());
}

TEST_F(Cluster, HasNoMoreMembersThanABoard) {
  job.add_newcomers("a", 5000);
  EXPECT_EQ(job.hosts.size(), 4096u);
  EXPECT_EQ(job.next_member, 4096);
}

TEST_F(Cluster, IsWrittenAndRead) {
  job.complete(0);
  job.add_newcomers("b", 1);
  job.failure = "why";
  job.trains = true;
  job.wish = 3;
  job.leaving = {2};
  job.hanging = {1, 3};
  job.limit = 5;
  EXPECT_EQ(decode_job(encode(job)), job);
  const HostRecord host{.terms = "terms",
                        .store = "a:1",
                        .joined = {4, 5},
                        .trains = 3,
                        .stands_still = 3,
                        .progress = {{0, 7}, {1, -1, true}},
                        .waits = false};
  EXPECT_EQ(decode_host(encode(host)), host);
  const std::string bytes = encode(job);
  ClusterJob broken = job;
  broken.generation.members = {-1};
  EXPECT_THROW(decode_job(encode(broken)), BackendError);
  broken = job;
  broken.hosts[4096] = "a";
  EXPECT_THROW(decode_job(encode(broken)), BackendError) << "the board has no room for it";
  broken = job;
  broken.wish = -1;
  EXPECT_THROW(decode_job(encode(broken)), BackendError);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(decode_job(bytes.substr(0, size)), BackendError) << size;
  }
  EXPECT_THROW(decode_job(bytes + " "), BackendError);
  EXPECT_THROW(decode_host(encode(host) + " "), BackendError);
}

}  // namespace
}  // namespace lockstep
