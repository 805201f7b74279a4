// SPDX-License-Identifier: BSD-3-Clause
// Spans as events of Chrome's trace format.
#include "lockstep/train/trace_events.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using Json = nlohmann::json;

std::vector<Json> events_of(const TracedRank& traced, const std::string& phase) {
  std::vector<Json> chosen;
  for (const Json& event : Json::parse("[" + trace_events(traced) + "]")) {
    if (event["ph"] == phase) chosen.push_back(event);
  }
  return chosen;
}

TEST(TraceEvents, AreInMicrosecondsOnTheCommonClock) {
  const auto events = events_of(
      {.rank = 3, .shift = -1'000'000, .spans = {{"forward", 1'002'003, 1'004'004, 5, 0}}}, "X");
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0]["name"], "forward");
  EXPECT_EQ(events[0]["pid"], kFirstTracedProcess + 3);
  EXPECT_DOUBLE_EQ(events[0]["ts"], 2.003);
  EXPECT_DOUBLE_EQ(events[0]["dur"], 2.001);
  EXPECT_EQ(events[0]["args"]["number"], 5);
}

TEST(TraceEvents, NameTheRankItsThreadsAndItsLabel) {
  std::vector<std::string> names;
  for (const Json& event :
       events_of({.rank = 1, .label = "host \"a\"", .spans = {{"own", 0, 1, -1, 4}}}, "M")) {
    EXPECT_EQ(event["pid"], kFirstTracedProcess + 1);
    for (const char* key : {"name", "labels"}) {
      if (event["args"].contains(key)) names.push_back(event["args"][key]);
    }
  }
  EXPECT_THAT(names, ElementsAre("rank 1", "host \"a\"", "training", "thread 4"));
}

TEST(TraceEvents, WritingCheckpointsHasAThreadOfItsOwn) {
  const TracedRank traced{.spans = {{"checkpoint write", 0, 9, -1, RecordedSpan::kWriting}}};
  const auto events = events_of(traced, "X");
  ASSERT_EQ(events.size(), 1U);
  const auto metadata = events_of(traced, "M");
  const auto writer = std::ranges::find_if(
      metadata, [](const Json& event) { return event["args"].value("name", "") == "checkpoints"; });
  ASSERT_NE(writer, metadata.end());
  EXPECT_EQ((*writer)["tid"], events[0]["tid"]);
}

TEST(TraceEvents, ReductionsInFlightShareALaneOnlyIfTheyDoNotOverlap) {
  constexpr auto kInFlight = RecordedSpan::kInFlight;
  const auto events = events_of({.spans = {{"bucket", 10, 20, 0, kInFlight},
                                           {"bucket", 15, 30, 1, kInFlight},
                                           {"bucket", 20, 40, 2, kInFlight}}},
                                "X");
  ASSERT_EQ(events.size(), 3U);
  EXPECT_NE(events[1]["tid"], events[0]["tid"]);
  EXPECT_EQ(events[2]["tid"], events[0]["tid"]);
}

// Perfetto takes thread 0, and the thread whose number is its process's, for the main thread of the
// process, and process 0 for the idle process of a kernel.
// One span on each kind of thread.
const std::vector<RecordedSpan> kSpansOfAllThreads{
    {"own", 0, 9, -1, 1},
    {"checkpoint write", 1, 9, -1, RecordedSpan::kWriting},
    {"bucket", 2, 9, 0, RecordedSpan::kInFlight},
    {"forward", 3, 9, -1, 0}};

// Perfetto takes thread 0, and the thread with its process's number, for the process's main thread,
// and process 0 for the idle process of a kernel.
TEST(TraceEvents, NoThreadHasTheNumberOfAProcess) {
  for (const int rank : {0, 1, 2}) {
    for (const Json& event : events_of({.rank = rank, .spans = kSpansOfAllThreads}, "X")) {
      EXPECT_GT(event["tid"], 0);
      EXPECT_LT(event["tid"], kFirstTracedProcess);
      EXPECT_GE(event["pid"], kFirstTracedProcess);
    }
  }
}

TEST(TraceEvents, AViewerShowsTheTrainingFirstAndThenItsReductions) {
  std::map<int, std::string> names;
  std::map<int, int> order;
  for (const Json& event : events_of({.spans = kSpansOfAllThreads}, "M")) {
    if (event["name"] == "thread_name") names[event["tid"]] = event["args"]["name"];
    if (event["name"] == "thread_sort_index") {
      order[event["args"]["sort_index"]] = event["tid"];
    }
  }
  std::vector<std::string> shown;
  for (const auto& [index, thread] : order) shown.push_back(names.at(thread));
  EXPECT_THAT(shown, ElementsAre("training", "communication", "checkpoints", "thread 1"));
}

TEST(TraceEvents, ASpanComesBeforeThoseInside) {
  const auto events =
      events_of({.spans = {{"inner", 10, 20, -1, 0}, {"outer", 10, 30, -1, 0}}}, "X");
  EXPECT_EQ(events[0]["name"], "outer");
  EXPECT_EQ(events[1]["name"], "inner");
}

}  // namespace
}  // namespace lockstep
