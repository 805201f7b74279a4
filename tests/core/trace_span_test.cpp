// SPDX-License-Identifier: BSD-3-Clause
// Spans and their recorder.
#include "lockstep/core/trace_span.h"

#include <map>
#include <optional>
#include <thread>

#include <gmock/gmock.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

TEST(TracedSpan, IsNotRecordedWithoutARecorder) {
  { const TracedSpan before("before"); }
  std::optional<TracedSpan> begun_before(std::in_place, "begun before");
  const SpanRecorder recorder(10);
  begun_before.reset();
  EXPECT_THAT(recorder.spans(), IsEmpty());
  EXPECT_THAT(recorder.totals(), IsEmpty());
  EXPECT_EQ(recorder.dropped(), 0);
}

TEST(TracedSpan, IsNotRecordedIfItOutlivesTheRecorder) {
  std::optional<SpanRecorder> recorder(std::in_place, 10);
  std::optional<TracedSpan> span(std::in_place, "longer");
  recorder.reset();
  const SpanRecorder next(10);
  span.reset();
  EXPECT_THAT(next.spans(), IsEmpty());
}

TEST(TracedSpan, HasItsNameItsNumberAndItsPlaceWithinAnother) {
  const SpanRecorder recorder(10);
  {
    const TracedSpan outer("outer", 7);
    const TracedSpan inner("inner");
  }
  const std::vector<RecordedSpan> spans = recorder.spans();
  ASSERT_THAT(spans, SizeIs(2));
  EXPECT_THAT(spans[0].name, StrEq("inner"));
  EXPECT_LT(spans[0].number, 0);
  EXPECT_THAT(spans[1].name, StrEq("outer"));
  EXPECT_EQ(spans[1].number, 7);
  EXPECT_LE(spans[1].begin, spans[0].begin);
  EXPECT_LE(spans[0].begin, spans[0].end);
  EXPECT_LE(spans[0].end, spans[1].end);
  EXPECT_EQ(spans[0].thread, 0);
}

TEST(TracedSpan, ATotalLeavesOutTheSpansInside) {
  const SpanRecorder recorder(10);
  {
    const TracedSpan outer("outer");
    for (int i = 0; i < 2; ++i) {
      const TracedSpan inner("inner");
      const TracedSpan innermost("innermost");
    }
  }
  std::int64_t sum = 0;
  for (const auto& [name, nanoseconds] : recorder.totals()) {
    EXPECT_GE(nanoseconds, 0) << name;
    sum += nanoseconds;
  }
  const RecordedSpan outer = recorder.spans().back();
  EXPECT_EQ(sum, outer.end - outer.begin);
  EXPECT_THAT(recorder.totals(), SizeIs(3));
}

TEST(SpanRecorder, CountsTheWaitsWithinReductionsInFlight) {
  SpanRecorder recorder(10);
  { const TracedSpan before("wait"); }
  const Launch first = recorder.launch();
  const Launch second = recorder.launch();
  { const TracedSpan compute("compute"); }
  { const TracedSpan wait("wait"); }
  recorder.arrive("bucket", 0, first);
  { const TracedSpan wait("wait"); }
  recorder.arrive("bucket", 1, second);
  { const TracedSpan after("wait"); }

  std::vector<std::int64_t> waits;
  std::int64_t in_flight = 0;
  for (const RecordedSpan& span : recorder.spans()) {
    if (span.name == std::string("wait")) waits.push_back(span.end - span.begin);
    if (span.name == std::string("bucket")) in_flight += span.end - span.begin;
  }
  ASSERT_THAT(waits, SizeIs(4));
  EXPECT_EQ(recorder.reductions().in_flight, in_flight);
  EXPECT_EQ(recorder.reductions().waited, waits[1] + waits[1] + waits[2]);
}

TEST(SpanRecorder, KeepsTheFirstSpansAndCountsTheOthers) {
  const SpanRecorder recorder(3);
  for (int i = 0; i < 5; ++i) const TracedSpan span("span", i);
  ASSERT_THAT(recorder.spans(), SizeIs(3));
  EXPECT_EQ(recorder.spans().back().number, 2);
  EXPECT_EQ(recorder.dropped(), 2);
}

TEST(SpanRecorder, TotalsGoOnWithoutSpace) {
  const SpanRecorder recorder(0);
  { const TracedSpan span("span"); }
  const std::int64_t first = recorder.totals().at(0).second;
  { const TracedSpan span("span"); }
  EXPECT_GT(recorder.totals().at(0).second, first);
  EXPECT_THAT(recorder.spans(), IsEmpty());
}

TEST(SpanRecorder, TellsThreadsApart) {
  // The maker's number is 0 even if it was not the first thread that recorded.
  std::thread([] {
    SpanRecorder recorder(10);
    std::thread([] { const TracedSpan other("other"); }).join();
    { const TracedSpan own("own"); }
    std::map<std::string, int> threads;
    for (const RecordedSpan& span : recorder.spans()) threads[span.name] = span.thread;
    EXPECT_EQ(threads["own"], 0);
    EXPECT_GT(threads["other"], 0);
  }).join();
}

TEST(UntracedThread, RecordsNothingOnItsThreadWhileItLives) {
  const SpanRecorder recorder(10);
  {
    const UntracedThread untraced;
    const TracedSpan unseen("unseen");
    std::thread([] { const TracedSpan other("other"); }).join();
  }
  { const TracedSpan later("later"); }
  std::vector<std::string> names;
  for (const RecordedSpan& span : recorder.spans()) names.emplace_back(span.name);
  EXPECT_THAT(names, ::testing::ElementsAre("other", "later"));
  EXPECT_THAT(recorder.totals(), SizeIs(2));
}

TEST(SpanRecorder, IsAloneInItsProcess) {
  const SpanRecorder recorder(1);
  EXPECT_THAT([] { SpanRecorder second(1); },
              ThrowsMessage<UsageError>(HasSubstr("being traced already")));
  EXPECT_EQ(SpanRecorder::active(), &recorder);
}

}  // namespace
}  // namespace lockstep
