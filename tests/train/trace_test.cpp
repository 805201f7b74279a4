// SPDX-License-Identifier: BSD-3-Clause
// Traces of ranks that are processes.
#include "lockstep/train/trace.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "tests/parallel/models.h"
#include "tests/support/join.h"
#include "tests/support/rank_processes.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/train/trace_events.h"
#include "lockstep/train/trainer.h"

namespace lockstep::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;
using ::testing::UnorderedElementsAre;
using Json = nlohmann::json;

constexpr int kSteps = 4;

void train(const std::shared_ptr<ProcessGroup>& group,
           std::optional<TrainerCheckpointOptions> checkpoints = {}) {
  Trainer trainer(Mlp(), group,
                  {.mode = TrainingMode::distributed,
                   .epochs = 1,
                   .distributed = kManyBuckets,
                   .checkpoints = std::move(checkpoints)});
  trainer.optimize_with<torch::optim::SGD>(torch::optim::SGDOptions(0.01));
  const std::vector<at::Tensor> batches(kSteps, torch::ones({4, 6}));
  trainer.fit(batches,
              [](auto& model, const at::Tensor& batch) { return model(batch).square().mean(); },
              {.evaluate = [] { return 1.0; }});
}

Json read_json(const std::string& file) {
  std::ifstream stream(file);
  return Json::parse(stream);
}

struct Interval {
  double begin;
  double end;
  bool holds(const Interval& other) const {
    // A time of the file is exact to a nanosecond; sums of doubles are not.
    return begin <= other.begin + 1e-4 && other.end <= end + 1e-4;
  }
};

Interval interval(const Json& event) {
  const double begin = event["ts"];
  return {begin, begin + event["dur"].get<double>()};
}

std::vector<Json> named(const Json& events, const std::string& name, int rank) {
  std::vector<Json> chosen;
  for (const Json& event : events) {
    if (event["ph"] == "X" && event["name"] == name && event["pid"] == kFirstTracedProcess + rank) {
      chosen.push_back(event);
    }
  }
  return chosen;
}

// Each event ends before the one after it begins, or holds it.
void expect_nested(const Json& events) {
  std::map<std::pair<int, int>, std::vector<Interval>> open;
  for (const Json& event : events) {
    if (event["ph"] != "X") continue;
    auto& outer = open[{event["pid"], event["tid"]}];
    const Interval own = interval(event);
    while (!outer.empty() && outer.back().end <= own.begin + 1e-4) outer.pop_back();
    if (!outer.empty()) {
      EXPECT_TRUE(outer.back().holds(own)) << event;
    }
    outer.push_back(own);
  }
}

TEST(Trace, ShowsTheStepsOfEveryRank) {
  const auto outcomes = run_ranks(3, [](Rank& rank) {
    const auto group = join(rank, {.backend = "shm", .device = at::kCPU});
    Trace trace(rank.folder() + "/trace.json", group);
    {
      const Trace::Span own("own", 9);
      train(group);
    }
    trace.finish();
    if (rank.rank() == 0) rank.report(read_json(rank.folder() + "/trace.json").dump());
  });
  const Json events = Json::parse(outcomes[0].result);
  ASSERT_TRUE(events.is_array());
  std::vector<std::string> ranks;
  for (const Json& event : events) {
    if (event["name"] == "process_name") ranks.push_back(event["args"]["name"]);
  }
  EXPECT_THAT(ranks, UnorderedElementsAre("rank 0", "rank 1", "rank 2"));
  expect_nested(events);
  for (int rank = 0; rank < 3; ++rank) {
    for (const char* name : {"batch", "forward", "backward", "optimizer"}) {
      EXPECT_EQ(named(events, name, rank).size(), kSteps) << name;
    }
    EXPECT_EQ(named(events, "evaluation", rank).size(), 1U);
    EXPECT_EQ(named(events, "own", rank).at(0)["args"]["number"], 9);
    const auto backwards = named(events, "backward", rank);
    const auto launches = named(events, "launch bucket", rank);
    const auto buckets = named(events, "bucket", rank);
    EXPECT_EQ(launches.size(), kSteps * 6);
    EXPECT_EQ(buckets.size(), kSteps * 6);
    for (const auto& [inner, outer] :
         {std::pair(launches, backwards), std::pair(buckets, backwards)}) {
      for (const Json& event : inner) {
        EXPECT_TRUE(std::ranges::any_of(outer, [&](const Json& around) {
          return interval(around).holds(interval(event));
        })) << event;
      }
    }
    std::set<int> numbers;
    for (const Json& bucket : buckets) {
      EXPECT_NE(bucket["tid"], backwards[0]["tid"]);
      numbers.insert(bucket["args"]["number"].get<int>());
    }
    EXPECT_EQ(numbers.size(), 6U);
  }
}

TEST(Trace, ShowsWhenEachRankSavesAndWritesCheckpoints) {
  const auto outcomes = run_ranks(2, [](Rank& rank) {
    const auto group = join(rank, {.backend = "shm", .device = at::kCPU});
    Trace trace(rank.folder() + "/trace.json", group);
    train(group, TrainerCheckpointOptions{.folder = rank.folder() + "/run", .every_steps = 3});
    trace.finish();
    if (rank.rank() == 0) rank.report(read_json(rank.folder() + "/trace.json").dump());
  });
  const Json events = Json::parse(outcomes[0].result);
  expect_nested(events);
  for (int rank = 0; rank < 2; ++rank) {
    const auto saves = named(events, "checkpoint", rank);
    const auto writes = named(events, "checkpoint write", rank);
    ASSERT_EQ(saves.size(), 2U);  // after step 3, and after the epoch
    ASSERT_EQ(writes.size(), 2U);
    const Json training = saves[0]["tid"];
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(saves[i]["tid"], training);
      EXPECT_NE(writes[i]["tid"], training);
      EXPECT_TRUE(interval(saves[i]).holds({interval(writes[i]).begin, interval(saves[i]).end}));
    }
    // The waits of the threads that write are not those of the training.
    for (const Json& wait : named(events, "wait", rank)) EXPECT_EQ(wait["tid"], training);
  }
}

// The ranks take turns, which barriers order.
TEST(Trace, ShowsAllRanksOnOneClock) {
  const auto outcomes = run_ranks(2, [](Rank& rank) {
    const auto group = join(rank, {.backend = "shm", .device = at::kCPU});
    Trace trace(rank.folder() + "/trace.json", group);
    for (int turn = 0; turn < 10; ++turn) {
      if (rank.rank() == turn % 2) const Trace::Span span("turn", turn);
      group->barrier().wait();
    }
    trace.finish();
    if (rank.rank() == 0) rank.report(read_json(rank.folder() + "/trace.json").dump());
  });
  const Json events = Json::parse(outcomes[0].result);
  const std::array<std::vector<Json>, 2> turns{named(events, "turn", 0), named(events, "turn", 1)};
  double previous = 0;
  for (int turn = 0; turn < 10; ++turn) {
    const Json& event = turns.at(turn % 2).at(turn / 2);
    EXPECT_EQ(event["args"]["number"], turn);
    EXPECT_GE(interval(event).begin + 1e-4, previous);
    previous = interval(event).end;
  }
}

TEST(Trace, ShowsWaits) {
  const auto outcomes = run_ranks(2, [](Rank& rank) {
    const auto group = join(rank, {.backend = "shm", .device = at::kCPU});
    Trace trace(rank.folder() + "/trace.json", group);
    {
      const Trace::Span span("many barriers");
      for (int i = 0; i < 1000; ++i) group->barrier().wait();
    }
    trace.finish();
    if (rank.rank() == 0) rank.report(read_json(rank.folder() + "/trace.json").dump());
  });
  const Json events = Json::parse(outcomes[0].result);
  const Interval barriers = interval(named(events, "many barriers", 0).at(0));
  EXPECT_TRUE(std::ranges::any_of(
      named(events, "wait", 0), [&](const Json& wait) { return barriers.holds(interval(wait)); }));
}

TEST(Trace, SaysHowManySpansItDropped) {
  const auto outcomes = run_ranks(1, [](Rank& rank) {
    const auto group = join(rank, {.backend = "shm", .device = at::kCPU});
    Trace trace(rank.folder() + "/trace.json", group, {.spans = 5});
    for (int i = 0; i < 12; ++i) const Trace::Span span("span", i);
    trace.finish();
    rank.report(read_json(rank.folder() + "/trace.json").dump());
  });
  EXPECT_THAT(outcomes[0].result, HasSubstr(", 7 spans after the first 5 dropped"));
  EXPECT_EQ(named(Json::parse(outcomes[0].result), "span", 0).size(), 5U);
}

TEST(Trace, HasRank0sSpansAfterAnException) {
  const auto outcomes = run_ranks(2, [](Rank& rank) {
    const auto group = join(rank, {.backend = "shm", .device = at::kCPU});
    const std::string file = rank.folder() + "/trace.json";
    try {
      const Trace trace(file, group);
      const Trace::Span span("until then");
      throw std::runtime_error("an error of the training");
    } catch (const std::runtime_error&) {
    }
    if (rank.rank() == 0) rank.report(read_json(file).dump());
    group->barrier().wait();
  });
  const Json events = Json::parse(outcomes[0].result);
  EXPECT_EQ(named(events, "until then", 0).size(), 1U);
  EXPECT_TRUE(named(events, "until then", 1).empty());
}

TEST(Trace, EveryRankSaysThatTheFileCannotBeWritten) {
  const auto outcomes = run_ranks(2,
                                  [](Rank& rank) {
                                    const auto group =
                                        join(rank, {.backend = "shm", .device = at::kCPU});
                                    const Trace trace("/absent/trace.json", group);
                                  },
                                  {.errors_are_outcomes = true});
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error_type, "UsageError");
    EXPECT_THAT(outcome.error, HasSubstr("/absent/trace.json"));
  }
}

TEST(Trace, RefusesRanksThatAreThreads) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    EXPECT_THAT([&] { Trace trace("/tmp/no.json", group); },
                ThrowsMessage<UsageError>(HasSubstr("ranks that are processes")));
  });
}

}  // namespace
}  // namespace lockstep::testing
